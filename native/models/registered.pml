/* Reductions in place, whose blocks any running rank takes: collective/shm/shm_registered.cc, and
 * the part of engine/operation/registration.cc before it. See README.md.
 *
 * MEMBERS ranks reduce REDUCTIONS tensors in turn, of BLOCKS blocks each; reductions r and r +
 * TENSORS are of the same tensor. When a rank has the results of a tensor's previous reduction, it
 * fills its copy, publishes its position and announces it, possibly while other reductions are
 * under way. A reduction can begin when all have announced it. In the last one a rank may die
 * while it holds a block: only then may a rank need the time slice of the sleep. */

#ifndef MEMBERS
#define MEMBERS 3
#endif
#ifndef REDUCTIONS
#define REDUCTIONS 3
#endif
#ifndef TENSORS
#define TENSORS 2
#endif
#ifndef BLOCKS
#define BLOCKS 2
#endif

/* WorkCell. The first two are one word. */
byte number;
byte next;
byte finished;
byte ended;
byte sleepers;
bool asleep[MEMBERS];

/* Content of a block of a copy. */
#define FILLED(r) (1 + 2 * (r))
#define REDUCED(r) (2 + 2 * (r))
#define WRITING 255

typedef Copy { byte block[BLOCKS] }
typedef Tensor {
  Copy copy[MEMBERS];
  byte place[MEMBERS] /* 1 + the reduction for which it was published */
}
Tensor tensor[TENSORS];
byte announced[MEMBERS]; /* number of reductions */

bool may_die, aborted;

#define of(r) tensor[(r) % TENSORS]

inline announce() {
  d_step {
    for (k : 0 .. BLOCKS - 1) { of(announced[me]).copy[me].block[k] = FILLED(announced[me]) }
    k = 0
  };
#ifdef MUTANT_ANNOUNCES_BEFORE_PUBLISHING
  announced[me]++;
  of(announced[me] - 1).place[me] = announced[me]
#else
  of(announced[me]).place[me] = announced[me] + 1;
  announced[me]++
#endif
}

#if MEMBERS == 2
#define all_announced(r) (announced[0] > r && announced[1] > r)
#else
#define all_announced(r) (announced[0] > r && announced[1] > r && announced[2] > r)
#endif

/* Sets `block` to a block, or to BLOCKS. */
inline take_block() {
  do
  :: atomic { seen = number; block = next };
#ifndef MUTANT_TAKES_A_BLOCK_OF_ANY_REDUCTION
    if
    :: seen != mine -> block = BLOCKS
    :: else
    fi;
#endif
    if
    :: block >= BLOCKS -> break
    :: else
    fi;
#ifdef MUTANT_TAKES_A_BLOCK_WITHOUT_A_SWAP
    next = block + 1;
    break
#else
    atomic {
      if
      :: number == seen && next == block -> next++; break
      :: else
      fi
    }
#endif
  od;
  seen = 0
}

inline lay_out() {
  d_step {
    for (k : 0 .. MEMBERS - 1) { assert(of(mine).place[k] == mine + 1) }
    k = 0
  }
}

inline read_block() {
  d_step {
    for (k : 0 .. MEMBERS - 1) {
      assert(of(mine).copy[k].block[block] == FILLED(mine));
      of(mine).copy[k].block[block] = WRITING
    }
    k = 0
  }
}

inline write_block() {
  d_step {
    for (k : 0 .. MEMBERS - 1) {
      assert(of(mine).copy[k].block[block] == WRITING);
      of(mine).copy[k].block[block] = REDUCED(mine)
    }
    k = 0
  }
}

inline wake_all() {
  d_step {
    for (k : 0 .. MEMBERS - 1) { asleep[k] = false }
    k = 0
  }
}

inline finish_blocks() {
  if
  :: count != 0 ->
    atomic { finished = finished + count; last = (finished >= BLOCKS); count = 0 };
    if
    :: last ->
      last = false;
#ifdef MUTANT_LOOKS_FOR_SLEEPERS_BEFORE_ENDING
      seen = sleepers;
#endif
#ifdef MUTANT_COUNTS_FROM_ZERO_WHEN_THE_NEXT_HAS_BEGUN
      atomic { number = mine + 1; next = 0 };
      finished = 0;
#else
      finished = 0;
      atomic { number = mine + 1; next = 0 };
#endif
#ifndef MUTANT_WAKES_WITHOUT_COUNTING
      ended++;
#endif
#ifndef MUTANT_LOOKS_FOR_SLEEPERS_BEFORE_ENDING
      seen = sleepers;
#endif
      if
      :: seen != 0 -> seen = 0; wake_all()
      :: else
      fi
    :: else
    fi
  :: else
  fi
}

#ifdef MUTANT_RETURNS_WHEN_ALL_BLOCKS_ARE_TAKEN
#define over (number > mine || next >= BLOCKS)
#else
#define over (number > mine)
#endif

inline wait_for_others() {
  if
  :: over -> goto done
  :: else
  fi;
  sleepers++;
  do
  :: true ->
#ifdef MUTANT_EXPECTS_WHAT_IS_THERE_WHEN_IT_SLEEPS
    if
    :: over || aborted -> break
    :: else
    fi;
    seen = ended;
#else
    seen = ended;
    if
    :: over || aborted -> break
    :: else
    fi;
#endif
    atomic {
      if
      :: ended == seen -> asleep[me] = true
      :: else
      fi;
      seen = 0
    };
    if
    :: !asleep[me]
    :: timeout && aborted -> asleep[me] = false /* the slice is over */
    fi
  od;
  atomic { seen = 0; sleepers-- };
  if
  :: over
  :: else -> goto gone
  fi
}

proctype Member(byte me) {
  byte mine, seen, block, count, k;
  bool last;
  do
  :: mine == REDUCTIONS -> break
  :: mine < REDUCTIONS ->
    do
    :: announced[me] < REDUCTIONS && announced[me] < mine + TENSORS -> announce()
    :: announced[me] > mine -> break
    od;
    /* The coordinator's schedule. */
    if
    :: all_announced(mine)
    :: timeout && aborted -> goto gone
    fi;
#ifdef MUTANT_LAYS_OUT_WITHOUT_A_BLOCK
    lay_out();
#endif
    do
    :: take_block();
      if
      :: block == BLOCKS -> break
      :: else
      fi;
      if
      :: may_die && me == 0 && mine == REDUCTIONS - 1 -> aborted = true; goto gone
      :: else
      fi;
#ifndef MUTANT_LAYS_OUT_WITHOUT_A_BLOCK
      if
      :: count == 0 -> lay_out()
      :: else
      fi;
#endif
      read_block();
      count++;
#ifdef MUTANT_FINISHES_BEFORE_WRITING
      finish_blocks();
#endif
      write_block()
    od;
    block = 0;
    finish_blocks();
    wait_for_others();
  done:
    skip;
    /* The user owns the results, and continues with them. */
    d_step {
      for (k : 0 .. BLOCKS - 1) { assert(of(mine).copy[me].block[k] == REDUCED(mine)) }
      k = 0;
      mine++
    }
  od;
  assert(!aborted || me != 0);
gone:
  skip
}

init {
  byte k;
  atomic {
    if
    :: may_die = true
    :: may_die = false
    fi;
    for (k : 0 .. MEMBERS - 1) { run Member(k) }
  }
}
