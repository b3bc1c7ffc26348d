/* Records in a ring of bytes in shared memory: transport/arena/ring.h. See README.md.
 *
 * One producer writes RECORDS records of one or two units each; READERS read them all, at their
 * own pace. A record does not wrap around: a marker skips the end of the ring. Writers and readers
 * take a step for each unit, and readers look a second time at the end: they must have read the
 * next record, whole, and it must still be there. Nobody may wait for ever. */

#ifndef READERS
#define READERS 2 /* 1: MessageRing; more: BroadcastRing */
#endif
#ifndef RECORDS
#define RECORDS 5
#endif
#ifndef CAPACITY
#define CAPACITY 4 /* units; twice the longest record */
#endif
#ifndef TOGETHER
#define TOGETHER 0 /* 1: records are passed together when all have been read (consume) */
#endif

/* Units: a record's first one contains its number and its length, its second only its number. */
#define FIRST(n, length) (4 * (n) + (length))
#define SECOND(n) (4 * (n) + 3)
#define SKIP 254
#define WRITING 255
byte unit[CAPACITY];

/* Positions only grow. */
byte written;
byte position[READERS];

byte length_of[RECORDS]; /* the producer's choice */

#if READERS == 1 || defined(MUTANT_ONE_READER_MAKES_ROOM)
#define slowest position[0]
#else
#define slowest (position[0] < position[1] -> position[0] : position[1])
#endif

#if defined(MUTANT_ROOM_FOR_THE_RECORD_ONLY)
#define need length
#elif defined(MUTANT_ROOM_FOR_ONE_MORE)
#define need (unused + length - 1)
#else
#define need (unused + length)
#endif

active proctype Producer() {
  byte n, length, unused;
  do
  :: n == RECORDS -> break
  :: n < RECORDS ->
    if
    :: length = 1
    :: length = 2
    fi;
    length_of[n] = length;
    unused = (CAPACITY - written % CAPACITY < length -> CAPACITY - written % CAPACITY : 0);
    /* If the ring is full, the producer tries again and again. */
    written + need - slowest <= CAPACITY;
#ifdef MUTANT_PUBLISHES_BEFORE_WRITING
    written = written + unused + length;
    unit[(written - length) % CAPACITY] = FIRST(n, length);
#else
    if
    :: unused > 0 ->
#ifndef MUTANT_SKIPS_WITHOUT_A_MARKER
      unit[written % CAPACITY] = SKIP
#else
      skip
#endif
    :: else
    fi;
    unit[(written + unused) % CAPACITY] = WRITING;
    unit[(written + unused) % CAPACITY] = FIRST(n, length);
    if
    :: length == 2 -> unit[(written + unused + 1) % CAPACITY] = SECOND(n)
    :: else
    fi;
    written = written + unused + length;
#endif
    atomic { n++; unused = 0; length = 0 }
  od
}

proctype Reader(byte me) {
  byte n, at, until, first, second;
  do
  :: n == RECORDS -> break
  :: n < RECORDS ->
    atomic { written != position[me] -> until = written; at = position[me] };
#ifdef MUTANT_GIVES_ROOM_BEFORE_READING
    position[me] = until;
#endif
    do
    :: at == until -> break
    :: at != until ->
      first = unit[at % CAPACITY];
      if
      :: first == SKIP ->
        at = at + CAPACITY - at % CAPACITY;
        first = unit[0]
      :: else
      fi;
      assert(first == FIRST(n, length_of[n]));
      if
      :: length_of[n] == 2 -> second = unit[(at + 1) % CAPACITY]; assert(second == SECOND(n))
      :: else
      fi;
      /* The record is processed; then it is passed. */
      assert(unit[at % CAPACITY] == first);
      assert(length_of[n] == 1 || unit[(at + 1) % CAPACITY] == second);
      d_step { at = at + length_of[n]; n++; first = 0; second = 0 };
      assert(at <= until);
#ifndef MUTANT_GIVES_ROOM_BEFORE_READING
      if
      :: !TOGETHER || at == until -> position[me] = at
      :: else
      fi
#endif
    od;
    atomic { at = 0; until = 0 }
  od
}

init {
  byte k;
  atomic {
    for (k : 0 .. READERS - 1) { run Reader(k) }
  }
}
