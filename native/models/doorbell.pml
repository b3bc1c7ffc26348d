/* Who sleeps on a doorbell, and who wakes them: transport/arena/doorbell.h and
 * engine/drive/drive.cc. See README.md.
 *
 * The rank's own thread and CALLERS blocked callers share one doorbell. Each of POSTERS others
 * posts one item, then rings, ordinarily or urgently. Each caller waits for one item. The
 * coordinator holds an ordinary item back to collect others, until a caller is blocked on it,
 * something urgent arrives or a deadline passes. No wake-up may be lost: the clock advances only
 * when nothing else can happen (`timeout`), and then only items that are held back on purpose may
 * be waiting. */

#ifndef POSTERS
#define POSTERS 2
#endif
#ifndef CALLERS
#define CALLERS 1
#endif

#define NORMAL 1
#define URGENT 2

#define THREAD 1
#define CALLER 2

#define NOTHING 0
#define POSTED 1
#define HELD 2
#define DONE 3

#define SLEEPERS (CALLERS + 1) /* 0: the thread */

/* Replaces the number of rings, and the number that each sleeper has seen: whether it was rung
 * since (while it is awake: true). */
bool rang[SLEEPERS];
byte armed; /* threshold + 4 * sleeper; 0: nobody */
bool asleep[SLEEPERS];
bool timed[SLEEPERS]; /* asleep until a deadline */

byte item[POSTERS];
bool urgent[POSTERS];
bool coordinator;
bool has_ready;  /* something is held back */
bool collecting; /* what the other ranks see of it */
byte blocked_on; /* item + 1 */

bool drive; /* DriveMutex */
byte callers;
byte here; /* callers that have not ended */
bool stop;
byte deadline; /* number of the current one, while has_ready */
byte expired; /* number of the last one that has passed */
byte thread_deadline; /* until when the thread sleeps; 0: for ever, or it does not sleep */

/* ---- transport/arena/doorbell.h ---- */

inline wake_channels(who) {
  atomic {
    if
    :: (who & THREAD) -> asleep[0] = false
    :: else
    fi;
    if
    :: (who & CALLER) ->
      for (k : 1 .. CALLERS) { asleep[k] = false }
    :: else
    fi;
    k = 0
  }
}

inline add_ring() {
  d_step {
    for (k : 0 .. CALLERS) { rang[k] = true }
    k = 0
  }
}

inline ring(urgency) {
  add_ring();
  a = armed;
  if
  :: a == 0 || urgency < (a & 3)
  :: else ->
    atomic { a = armed; armed = 0 };
    if
    :: a == 0
    :: else ->
#ifndef MUTANT_NO_RING_AFTER_DISARMING
      add_ring();
#endif
      wake_channels(a >> 2)
    fi
  fi;
  a = 0
}

inline wake(who) {
  add_ring();
  wake_channels(who)
}

inline arm(threshold, who) { armed = threshold + 4 * who }

/* ---- the relevant parts of Progress and Coordination ---- */

/* Under the DriveMutex. A posted item is done at once, or held back. */
inline look_for_work() {
  d_step {
    worked = false;
    flush = (has_ready && expired == deadline) ||
            (blocked_on != 0 && (item[blocked_on - 1] == HELD || item[blocked_on - 1] == POSTED));
    for (k : 0 .. POSTERS - 1) {
      if
      :: item[k] == POSTED -> worked = true; flush = flush || urgent[k]
      :: else
      fi
    }
    fresh = false;
    for (k : 0 .. POSTERS - 1) {
      if
      :: (item[k] == POSTED || item[k] == HELD) && (flush || !coordinator) ->
        item[k] = DONE; worked = true
      :: (item[k] == POSTED || item[k] == HELD) && !flush && coordinator ->
        item[k] = HELD; fresh = true
      :: else
      fi
    }
    if
    :: fresh && !has_ready -> deadline++
    :: else
    fi;
    has_ready = fresh;
    k = 0;
    flush = false;
    fresh = false
  }
}

/* Further effects of a look that found work. */
inline tell() {
  worked = false;
  collecting = has_ready;
  if
  :: callers > 1 -> wake(CALLER)
  :: else
  fi
}

#define threshold() (has_ready -> URGENT : NORMAL)
#define next_deadline() (has_ready -> deadline : 0)

/* ---- engine/drive/drive.cc ---- */

#define lock drive = true
#define unlock drive = false
#define free !drive

inline sleep(i, until) {
  atomic {
    if
    :: !rang[i] -> asleep[i] = true; timed[i] = (until != 0)
    :: else
    fi
  };
  atomic { !asleep[i] -> timed[i] = false }
}

/* Accesses that need the DriveMutex are combined with the next visible access in one step. */
proctype Thread() {
  byte k, until;
  bool worked, flush, fresh;
  do
  :: stop -> break
  :: else ->
#ifndef MUTANT_THREAD_STANDS_BACK_WITH_AN_OLD_DEADLINE
    thread_deadline = 0;
#endif
    rang[0] = false;
    if
    :: callers > 0 ->
      /* In the code for 100 ms at most; nothing here may need that limit. */
      sleep(0, 0);
      goto next
    :: else
    fi;
    atomic {
      free -> lock;
#ifndef MUTANT_THREAD_DOES_NOT_LOOK_FOR_CALLERS_AGAIN
      if
      :: callers > 0 -> unlock; goto next
      :: else
      fi;
#endif
      arm(0, 0)
    };
  again:
    atomic {
      if
      :: callers > 0 -> unlock; goto next
      :: else
      fi;
      look_for_work();
      if
      :: !worked && callers > 0 -> unlock; goto next
      :: !worked && callers == 0 -> goto ready
      :: else
      fi
    };
    tell();
    goto again;
  ready:
#if defined(MUTANT_NO_SECOND_LOOK)
    rang[0] = false;
    arm(threshold(), THREAD);
    atomic {
#elif defined(MUTANT_RINGS_READ_AFTER_SECOND_LOOK)
    arm(threshold(), THREAD);
    atomic { look_for_work(); if :: worked -> goto found :: else fi };
    rang[0] = false;
    atomic {
#else
    rang[0] = false;
    arm(threshold(), THREAD);
    atomic {
      look_for_work();
      if
      :: worked -> goto found
      :: else
      fi;
#endif
      if
      :: stop -> unlock; goto next
      :: else
      fi;
      thread_deadline = next_deadline();
      until = thread_deadline;
      unlock
    };
    sleep(0, until);
    goto next;
  found:
    tell();
    unlock;
  next:
    atomic { until = 0; rang[0] = true }
  od
}

proctype Caller(byte me) {
  byte k, a, until;
  bool worked, flush, fresh;
#define done (item[(me - 1) % POSTERS] == DONE)
  /* Engine::wait */
  blocked_on = 1 + (me - 1) % POSTERS;
  if
  :: collecting -> ring(URGENT)
  :: else
  fi;
  callers++;
  do
  :: done -> break
  :: else ->
    /* It may be done by the time this has the lock. */
    atomic { free -> lock; arm(0, 0) };
  again:
    atomic {
      if
      :: done -> unlock; goto next
      :: else
      fi;
      look_for_work();
      if
      :: !worked -> goto ready
      :: else
      fi
    };
    tell();
    goto again;
  ready:
    rang[me] = false;
    atomic {
      look_for_work();
      if
      :: worked -> goto found
      :: else -> unlock
      fi
    };
#ifdef POLLING
    if
    :: rang[me] -> goto next
    :: true /* it gives up */
    fi;
#endif
    atomic { free -> lock; rang[me] = false };
    arm(threshold(), CALLER);
    atomic {
      if
      :: done -> unlock; goto next
      :: else
      fi;
      look_for_work();
      if
      :: worked -> goto found
      :: else
      fi;
      until = next_deadline();
      unlock
    };
    sleep(me, until);
    goto next;
  found:
    tell();
    unlock;
  next:
    atomic { until = 0; rang[me] = true }
  od;
  atomic { callers--; until = callers };
  if
  :: until == 0 ->
    /* leave_to_thread */
#ifndef MUTANT_CALLER_LEAVES_WITHOUT_A_LOOK
    atomic {
      free -> lock;
      if
      :: callers > 0 -> unlock; goto gone
      :: else
      fi;
      arm(threshold(), THREAD)
    };
    atomic {
      look_for_work();
      if
      :: worked -> goto look_found
      :: else
      fi;
#ifndef MUTANT_DEADLINE_IS_NOT_HANDED_OVER
      if
      :: next_deadline() != 0 && next_deadline() != thread_deadline -> unlock; goto wake_thread
      :: else
      fi;
#endif
      unlock;
      goto gone
    };
  look_found:
    tell();
    unlock;
  wake_thread:
    wake(THREAD)
#else
    skip
#endif
  :: else ->
#ifndef MUTANT_LEAVING_CALLER_DOES_NOT_WAKE_THE_OTHERS
    wake(CALLER)
#else
    skip
#endif
  fi;
gone:
  atomic { blocked_on = 0; here-- }
}

proctype Poster(byte i) {
  byte k, a;
#ifdef MUTANT_RINGS_BEFORE_POSTING
  ring((urgent[i] -> URGENT : NORMAL));
  item[i] = POSTED
#else
  item[i] = POSTED;
  ring((urgent[i] -> URGENT : NORMAL))
#endif
}

/* The clock. */
proctype Time() {
  byte k;
  bool late;
  do
  :: timeout ->
    atomic {
      for (k : 0 .. POSTERS - 1) {
        /* Ordinary news may wait while something is held back; urgent news never. */
        assert(item[k] != POSTED || (has_ready && !urgent[k]))
      }
      late = false;
      for (k : 0 .. SLEEPERS - 1) {
        if
        :: asleep[k] && timed[k] -> late = true; asleep[k] = false
        :: else
        fi
      }
      if
      :: late -> expired = deadline
      :: else -> break
      fi
    }
  od;
  /* All sleep for ever, or have ended. */
  assert(here == 0);
  for (k : 0 .. POSTERS - 1) { assert(item[k] == DONE) }
  /* Engine::shutdown: the thread must end. */
  stop = true;
  wake(THREAD)
}

init {
  byte k;
  atomic {
    for (k : 0 .. CALLERS) { rang[k] = true }
#ifdef COORDINATOR
    coordinator = COORDINATOR;
#else
    if
    :: coordinator = true
    :: coordinator = false
    fi;
#endif
    for (k : 0 .. POSTERS - 1) {
      if
      :: urgent[k] = true
      :: coordinator -> urgent[k] = false /* others hold nothing back: no difference */
      fi
    }
    here = CALLERS;
    for (k : 0 .. POSTERS - 1) { run Poster(k) }
    for (k : 1 .. CALLERS) { run Caller(k) }
    run Thread();
    run Time()
  }
}
