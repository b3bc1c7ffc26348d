/* Who may overwrite a chunk of the fusion buffer, and when: the streamed algorithms of
 * collective/shm/shm_communicator.cc and collective/shm/shm_allreduce.cc. See README.md.
 *
 * MEMBERS ranks run OPERATIONS collectives, each chosen freely: an allreduce streamed through the
 * window, a one-shot allreduce, or an operation with one exchange (broadcast, allgather, ...).
 * With SETS == 2 they choose freely between two communicators, which have separate barriers and
 * counts of chunks, and share the windows. The barrier is assumed to work (barrier.pml).
 *
 * Every part of a chunk is tagged with its last content. Writers take two steps, and so do
 * readers, which find the right tag in both; nobody writes data that a peer has still to read. */

#ifndef MEMBERS
#define MEMBERS 3
#endif
#ifndef OPERATIONS
#define OPERATIONS 2
#endif
#ifndef CHUNKS
#define CHUNKS 3 /* most chunks of an operation */
#endif
#ifndef WINDOW
#define WINDOW 4 /* kWindowChunks */
#endif
#ifndef SETS
#define SETS 1
#endif

#define STREAMED 0 /* reduce-scatter, then gather */
#define ONE_SHOT 1
#define STREAM 2 /* one exchange */

/* A tag: operation, chunk, and whether the part is reduced. */
#define tag(op, chunk, reduced) (1 + 2 * ((op) * CHUNKS + (chunk)) + (reduced))
#define WRITING 255

typedef Chunk { byte part[MEMBERS] }
typedef Window { Chunk chunk[WINDOW] }
Window window[MEMBERS];

/* The operations: the same on all ranks. */
byte kind[OPERATIONS];
byte chunks[OPERATIONS];
bool scaled[OPERATIONS]; /* a streamed allreduce also reads its own share from the window */
byte set[OPERATIONS];

byte arrived[SETS]; /* arrivals at each communicator's barrier, of all members together */

#define slot(c) ((first + (c)) % WINDOW)

inline arrive() { atomic { generation[s]++; arrived[s]++ } }
inline wait() { arrived[s] >= generation[s] * MEMBERS }

/* Writes the parts of a chunk of this member's window that `which` selects. */
inline write(c, which, reduced) {
  d_step {
    for (p : 0 .. MEMBERS - 1) {
      if
      :: which -> window[me].chunk[slot(c)].part[p] = WRITING
      :: else
      fi
    }
    p = 0
  };
  d_step {
    for (p : 0 .. MEMBERS - 1) {
      if
      :: which -> window[me].chunk[slot(c)].part[p] = tag(op, c, reduced)
      :: else
      fi
    }
    p = 0
  }
}

/* Reads part q of a chunk of all windows, without this member's if that is in the tensors. */
#define holds(m, q, c, reduced) \
  ((m == me && !scaled[op]) || window[m].chunk[slot(c)].part[q] == tag(op, c, reduced))

inline check(q, c, reduced) {
  d_step {
    for (p : 0 .. MEMBERS - 1) { assert(holds(p, (q), c, reduced)) }
    p = 0
  }
}

#define EVERY_PART true
#define PUBLISHED_PARTS (p != me || scaled[op])

/* Sums up this member's share of a chunk, from all windows, into its own window. */
inline reduce(c) {
  check(me, c, 0);
  d_step {
    for (p : 0 .. MEMBERS - 1) { assert(holds(p, me, c, 0)) }
    p = 0;
    window[me].chunk[slot(c)].part[me] = WRITING
  };
  window[me].chunk[slot(c)].part[me] = tag(op, c, 1)
}

/* Copies every share out of the window of the member that reduced it. */
inline unpack(c) {
  check(p, c, 1);
  check(p, c, 1)
}

/* Copies out the data that the others have packed for all, or for this member. */
inline consume(c) {
  check(me, c, 0);
  check(me, c, 0)
}

inline streamed() {
  write(0, PUBLISHED_PARTS, 0);
  arrive();
  step = 1;
  do
  :: step <= chunks[op] + 1 ->
    if
    :: step < chunks[op] -> write(step, PUBLISHED_PARTS, 0)
    :: else
    fi;
    wait();
#ifdef MUTANT_UNPACKS_BEFORE_THE_NEXT_BARRIER
    if
    :: step <= chunks[op] -> reduce(step - 1); unpack(step - 1)
    :: else
    fi;
#else
    if
    :: step <= chunks[op] -> reduce(step - 1)
    :: else
    fi;
    if
    :: step >= 2 -> unpack(step - 2)
    :: else
    fi;
#endif
    if
    :: step <= chunks[op] -> arrive()
    :: else
    fi;
    step++
  :: else -> break
  od;
  step = 0
}

inline one_shot() {
  write(0, EVERY_PART, 0);
  arrive();
  wait();
  consume(0)
}

inline stream() {
  write(0, EVERY_PART, 0);
  arrive();
  step = 1;
  do
  :: step <= chunks[op] ->
    if
    :: step < chunks[op] -> write(step, EVERY_PART, 0)
    :: else
    fi;
    wait();
    consume(step - 1);
    if
    :: step < chunks[op] -> arrive()
    :: else
    fi;
    step++
  :: else -> break
  od;
  step = 0
}

inline end_operation() {
#if SETS > 1 && !defined(MUTANT_NO_BARRIER_BETWEEN_COMMUNICATORS)
  arrive();
  wait();
#endif
  skip
}

proctype Member(byte me) {
  byte op, s, step, p, first;
  byte generation[SETS];
  byte next_chunk[SETS];
  do
  :: op == OPERATIONS -> break
  :: op < OPERATIONS ->
    d_step {
      s = set[op];
      first = next_chunk[s];
#ifdef MUTANT_EVERY_OPERATION_STARTS_WITH_THE_FIRST_CHUNK
      first = 0;
#endif
      next_chunk[s] = (first + chunks[op]) % WINDOW
    };
    if
    :: kind[op] == STREAMED -> streamed()
    :: kind[op] == ONE_SHOT -> one_shot()
    :: kind[op] == STREAM -> stream()
    fi;
    end_operation();
    op++
  od
}

init {
  byte o, some;
  atomic {
    for (o : 0 .. OPERATIONS - 1) {
      if
      :: kind[o] = STREAMED
      :: kind[o] = ONE_SHOT
      :: kind[o] = STREAM
      fi;
      if
      :: kind[o] == STREAMED -> scaled[o] = true
      :: true
      fi;
      if
      :: kind[o] == ONE_SHOT -> chunks[o] = 1
      :: kind[o] != ONE_SHOT -> select(some : 1 .. CHUNKS); chunks[o] = some
      fi;
      select(some : 0 .. SETS - 1);
      set[o] = some
    }
    for (o : 0 .. MEMBERS - 1) { run Member(o) }
  }
}
