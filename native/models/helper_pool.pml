/* Who takes which piece of work, who waits for whom and who wakes whom: HelperPool in
 * collective/kernels/helper_pool.h. See README.md.
 *
 * A caller has ROUNDS pieces of work, each cut into PIECES, and HELPERS helpers; then it stops
 * them. A round's work is done once, piece by piece, before the caller goes on. With -DTOGETHER
 * every piece waits until all of its round have been taken, so all helpers are needed. */

#ifndef HELPERS
#define HELPERS 2
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef PIECES
#define PIECES 3
#endif

#define STOP 255

byte left, sleepers, undone, task;
bool caller_sleeps;
bool asleep[HELPERS], caller_asleep; /* in the kernel */
typedef Round { byte worked[PIECES]; byte taken }
Round rounds[ROUNDS];
byte under_way; /* pieces in progress: `task` must not change */
byte ended;

/* Takes pieces until none is left; counts them in `done`. */
inline take_pieces() {
  done = 0;
  seen = left;
  do
  :: seen != 0 && seen != STOP ->
#ifdef MUTANT_READS_THE_TASK_BEFORE_TAKING
    mine = task;
#endif
#ifdef MUTANT_TAKES_WITHOUT_COMPARING
    left = seen - 1;
    won = true;
#else
    atomic {
      won = left == seen;
      if
      :: won -> left = seen - 1; under_way++
      :: else -> seen = left
      fi
    };
#endif
    if
    :: won ->
#ifndef MUTANT_READS_THE_TASK_BEFORE_TAKING
      mine = task;
#endif
      rounds[mine].worked[PIECES - seen]++;
      assert(rounds[mine].worked[PIECES - seen] == 1);
      rounds[mine].taken++;
#ifdef TOGETHER
      rounds[mine].taken == PIECES;
#endif
      assert(mine == task);
      under_way--;
      done++;
      seen = left
    :: else
    fi
  :: else -> break
  od
}

proctype Helper(byte me) {
  byte seen, done, mine;
  bool won, last, wakes;
  do
  :: left == STOP -> break
  :: left != STOP ->
    if
    :: left != 0 /* found while polling */
    :: true ->
      sleepers++;
      atomic {
#ifdef MUTANT_SLEEPS_WHATEVER_THERE_IS
        asleep[me] = true
#else
        if
        :: left == 0 -> asleep[me] = true
        :: else
        fi
#endif
      };
      !asleep[me];
      sleepers--
    fi;
    take_pieces();
    if
    :: done > 0 ->
#ifdef MUTANT_LOOKS_FOR_THE_CALLER_BEFORE_IT_IS_DONE
      wakes = caller_sleeps;
#endif
      atomic { undone = undone - done; last = undone == 0 };
#ifndef MUTANT_LOOKS_FOR_THE_CALLER_BEFORE_IT_IS_DONE
      wakes = caller_sleeps;
#endif
      if
      :: last && wakes -> caller_asleep = false
      :: else
      fi
    :: else
    fi
  od;
  ended++
}

inline wake(most) {
  atomic {
    woken = 0;
    for (h : 0 .. HELPERS - 1) {
      if
      :: asleep[h] && woken < most -> asleep[h] = false; woken++
      :: else
      fi
    }
  }
}

proctype Caller() {
  byte round, seen, done, mine, h, p, woken;
  bool won, wakes;
  do
  :: round < ROUNDS ->
    assert(under_way == 0);
    task = round;
    undone = PIECES;
#ifdef MUTANT_LOOKS_FOR_SLEEPERS_BEFORE_IT_CALLS
    wakes = sleepers != 0;
#endif
    left = PIECES;
#ifndef MUTANT_LOOKS_FOR_SLEEPERS_BEFORE_IT_CALLS
    wakes = sleepers != 0;
#endif
    if
    :: wakes -> wake(PIECES - 1)
    :: else
    fi;
    take_pieces();
    atomic { undone = undone - done; seen = undone };
#ifndef MUTANT_DOES_NOT_WAIT_FOR_HELPERS
    if
    :: seen == 0
    :: seen != 0 -> undone == 0 /* found while polling */
    :: seen != 0 ->
      caller_sleeps = true;
      do
      :: true ->
        seen = undone;
        if
        :: seen == 0 -> break
        :: else
        fi;
        atomic {
          if
          :: undone == seen -> caller_asleep = true
          :: else
          fi
        };
        !caller_asleep
      od;
      caller_sleeps = false
    fi;
#endif
    d_step {
      for (p : 0 .. PIECES - 1) { assert(rounds[round].worked[p] == 1) }
    };
    round++
  :: else -> break
  od;
  left = STOP;
#ifndef MUTANT_STOPS_WITHOUT_WAKING
  wake(HELPERS);
#endif
  ended == HELPERS /* joined */
}

init {
  byte i;
  atomic {
    for (i : 0 .. HELPERS - 1) { run Helper(i) }
    run Caller()
  }
}
