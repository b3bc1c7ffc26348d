/* The split barrier: collective/shm/shm_barrier.cc. See README.md.
 *
 * MEMBERS members arrive and wait ROUNDS times. At the end one may abort the job instead of
 * arriving (Arena::abort); every waiting member must then notice it. The time slice of the sleep
 * may be needed only for that: before, it never ends (`timeout` is only for the abort). */

#ifndef MEMBERS
#define MEMBERS 3
#endif
#ifndef ROUNDS
#define ROUNDS 3
#endif

byte arrived;    /* as in BarrierCell */
byte generation;
byte sleepers;
bool asleep[MEMBERS];
bool aborted;
bool may_abort;

byte step[MEMBERS]; /* number of rounds in which each has arrived and published */

inline wake_all() {
  d_step {
    for (k : 0 .. MEMBERS - 1) { asleep[k] = false }
    k = 0
  }
}

inline open_gate() {
#ifdef MUTANT_LOOKS_FOR_SLEEPERS_BEFORE_OPENING
  any = sleepers;
  generation = mine;
#else
  generation = mine;
  any = sleepers;
#endif
  if
  :: any != 0 -> any = 0; wake_all()
  :: else
  fi
}

inline arrive() {
  atomic {
    mine++;
    step[me] = mine /* what this member publishes, before it arrives */
  };
#ifdef MUTANT_ARRIVALS_ARE_NOT_ADDED_AT_ONCE
  any = arrived;
  atomic { arrived = any + 1; any = arrived };
#else
  atomic { arrived++; any = arrived };
#endif
  if
#ifdef MUTANT_LAST_BUT_ONE_OPENS
  :: any % MEMBERS == MEMBERS - 1 -> any = 0; open_gate()
#else
  :: any % MEMBERS == 0 -> any = 0; open_gate()
#endif
  :: else -> any = 0
  fi
}

#define gate_open (generation >= mine)

inline wait() {
  if
  :: gate_open -> goto opened
  :: else
  fi;
  sleepers++;
  do
  :: true ->
#ifdef MUTANT_EXPECTS_WHAT_IS_THERE_WHEN_IT_SLEEPS
    if
    :: gate_open || aborted -> break
    :: else
    fi;
    seen = generation;
#else
    seen = generation;
    if
    :: gate_open || aborted -> break
    :: else
    fi;
#endif
    atomic {
      if
      :: generation == seen -> asleep[me] = true
      :: else
      fi;
      seen = 0
    };
    if
    :: !asleep[me]
    :: timeout && aborted -> asleep[me] = false /* the slice is over */
    fi
  od;
  atomic {
    seen = 0;
    sleepers--
  };
  if
  :: aborted -> goto gone
  :: else
  fi;
opened:
  /* All members' steps are published, and none is more than one ahead. */
  atomic {
    for (k : 0 .. MEMBERS - 1) { assert(step[k] == mine || step[k] == mine + 1) }
    k = 0
  }
}

proctype Member(byte me) {
  byte mine, any, seen, k;
  do
  :: mine == ROUNDS -> break
  :: mine < ROUNDS ->
    if
    :: may_abort && me == 0 && mine == ROUNDS - 1 -> atomic { aborted = true; any = sleepers };
      if
      :: any != 0 -> any = 0; wake_all()
      :: else
      fi;
      goto gone
    :: else
    fi;
    arrive();
    wait()
  od;
  assert(!aborted || may_abort);
gone:
  skip
}

init {
  byte k;
  atomic {
    if
    :: may_abort = true
    :: may_abort = false
    fi;
    for (k : 0 .. MEMBERS - 1) { run Member(k) }
  }
}
