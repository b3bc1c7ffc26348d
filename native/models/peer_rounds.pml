/* Who may write a half of a GPU's buffer, and when a buffer may be freed: PeerAllreduce in
 * collective/gpu/peer_allreduce.h, and bring, arrive, meet and leave in device/kernels/kernels.cu.
 * See README.md.
 *
 * MEMBERS GPUs run ROUNDS kernels each, one after the other, of up to BLOCKS blocks: the number of
 * blocks of a round is chosen freely, the same for all members. Blocks of a kernel run in
 * parallel. A block writes its part into a half of its member's buffer, tells the others, waits
 * for them, reads all members' parts and tells them that it has done so. After the last round a
 * member frees its buffer when all have told it.
 *
 * Parts are tagged with their round; writers take two steps, readers look twice. */

#ifndef MEMBERS
#define MEMBERS 2
#endif
#ifndef ROUNDS
#define ROUNDS 3
#endif
#ifndef BLOCKS
#define BLOCKS 2
#endif

#define WRITING 255

#ifdef MUTANT_ONE_HALF
#define half(r) 0
#else
#define half(r) ((r) % 2)
#endif

byte blocks[ROUNDS + 1]; /* of rounds 1 … */

typedef Block {
  byte part[2];          /* of each half */
  byte arrived[MEMBERS]; /* in this round, as the others have written */
  byte left[MEMBERS]
}
typedef Buffer {
  Block block[BLOCKS];
  bool freed
}
Buffer buffer[MEMBERS];

typedef Member {
  byte ended[ROUNDS + 1] /* blocks of this round */
}
Member member[MEMBERS];

/* Its kernel may run: the previous one has ended. */
#ifdef MUTANT_KERNELS_OVERLAP
#define begun(r) true
#else
#define begun(r) (member[me].ended[(r) - 1] == blocks[(r) - 1])
#endif

proctype block_of(byte me, b) {
  byte round = 1, other;
  do
  :: round > ROUNDS -> break
  :: round <= ROUNDS && b >= blocks[round] -> round++
  :: round <= ROUNDS && b < blocks[round] ->
    begun(round);
    buffer[me].block[b].part[half(round)] = WRITING;
#ifdef MUTANT_ARRIVES_BEFORE_WRITING
    for (other : 0 .. MEMBERS - 1) { buffer[other].block[b].arrived[me] = round }
    buffer[me].block[b].part[half(round)] = round;
#else
    buffer[me].block[b].part[half(round)] = round;
    for (other : 0 .. MEMBERS - 1) {
      assert(!buffer[other].freed);
      buffer[other].block[b].arrived[me] = round
    }
#endif
    for (other : 0 .. MEMBERS - 1) {
#ifndef MUTANT_DOES_NOT_MEET
      buffer[me].block[b].arrived[other] >= round
#else
      skip
#endif
    }
    for (other : 0 .. MEMBERS - 1) {
      assert(!buffer[other].freed && buffer[other].block[b].part[half(round)] == round);
      assert(!buffer[other].freed && buffer[other].block[b].part[half(round)] == round)
    }
    atomic { /* in any order: no member reads two of them */
      for (other : 0 .. MEMBERS - 1) {
        assert(!buffer[other].freed);
        buffer[other].block[b].left[me] = round
      }
    }
    atomic { member[me].ended[round]++; round++ }
  od
}

/* The member's host, at the end. */
proctype host(byte me) {
  byte b, other;
  member[me].ended[ROUNDS] == blocks[ROUNDS];
#ifndef MUTANT_FREES_WITHOUT_A_LOOK
  for (b : 0 .. BLOCKS - 1) {
    if
    :: b < blocks[ROUNDS] ->
      for (other : 0 .. MEMBERS - 1) { buffer[me].block[b].left[other] >= ROUNDS }
    :: else
    fi
  }
#endif
  buffer[me].freed = true
}

init {
  byte m, b, r;
  atomic {
    for (r : 1 .. ROUNDS) { select(b : 1 .. BLOCKS); blocks[r] = b }
    for (m : 0 .. MEMBERS - 1) {
      for (b : 0 .. BLOCKS - 1) { run block_of(m, b) }
      run host(m)
    }
  }
}
