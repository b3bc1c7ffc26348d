/* Who learns of an announcement, and when: engine/submission/announcements.cc,
 * Submissions::announce, HeldRings and wait in engine/engine.cc; flush_backlogs in
 * engine/drive/progress.cc; coordinate and publish in engine/coordination/coordination.cc;
 * ScheduleReader::read. See README.md.
 *
 * Two ranks, of which rank 0 coordinates, submit TENSORS tensors. Thread 1 of each submits all of
 * them together and waits for them, except for the last one on rank POLLER. There thread 2 submits
 * the last one, and only polls for it: it makes no progress. Thread 1 may begin after that. Each
 * rank has a driver, which represents any thread that drives there. Rings are queues here
 * (rings.pml), and the doorbell is assumed to work (doorbell.pml): a sleeper wakes if it was rung
 * since it last looked. Only records that wait for room may need a deadline. */

#define RANKS 2
#ifndef TENSORS
#define TENSORS 2
#endif
#ifndef POLLER
#define POLLER 0
#endif
#ifndef CAPACITY
#define CAPACITY 1 /* records that fit a ring */
#endif

chan ring[RANKS] = [CAPACITY] of { byte };
chan backlog[RANKS] = [TENSORS] of { byte };
chan schedule[RANKS] = [CAPACITY] of { byte }; /* unread records of each */
chan schedule_backlog = [TENSORS] of { byte };

bool rung[RANKS];    /* since the driver's last look */
bool table[RANKS];   /* the mutex of Submissions */
byte holder[RANKS];  /* ring_holder_: 0 for none, or the thread */
bool held[RANKS];
byte arrived[TENSORS]; /* in the slot's round */

typedef Tensors { byte tensor[TENSORS] }
Tensors done[RANKS];
Tensors order[RANKS]; /* in which the tensors were submitted, as tensor + 1 */
byte submitted[RANKS];

bool later; /* thread 1 of rank POLLER begins when thread 2 has its result */

#define arrive(t) arrived[t]++; last = (arrived[t] == RANKS)

/* Submissions::announce, under its mutex. */
inline submit(t) {
  d_step {
    !table[r];
    table[r] = true;
    order[r].tensor[submitted[r]] = t + 1;
    submitted[r]++;
#ifdef MUTANT_ARRIVES_BEFORE_ANNOUNCING
    arrive(t)
#endif
  };
  atomic {
    if
#ifdef MUTANT_OVERTAKES_THE_BACKLOG
    :: len(ring[r]) < CAPACITY -> ring[r]!t; goto pushed
#else
    :: len(backlog[r]) == 0 && len(ring[r]) < CAPACITY -> ring[r]!t; goto pushed
#endif
    :: else -> backlog[r]!t
    fi
  };
  rung[0] = true;
  rung[r] = true; /* Doorbell::wake_all */
pushed:
#ifndef MUTANT_ARRIVES_BEFORE_ANNOUNCING
  atomic { arrive(t) };
#endif
  /* ring_coordinator */
  atomic {
    if
#ifdef MUTANT_HOLDS_THE_RINGS_OF_EVERY_THREAD
    :: last && holder[r] != 0 -> held[r] = true
    :: last && holder[r] == 0 -> rung[0] = true
#else
    :: last && holder[r] == me -> held[r] = true
    :: last && holder[r] != me -> rung[0] = true
#endif
    :: !last
    fi;
    last = false;
    table[r] = false
  }
}

/* HeldRings */
inline begin_holding() {
  atomic { !table[r]; holder[r] = me }
}

inline end_holding() {
  atomic {
    !table[r];
    holder[r] = 0;
    if
#ifdef MUTANT_WHO_WAITS_DRIVES_EVERYWHERE
    :: false
#else
    :: held[r] && r != 0 -> rung[0] = true
#endif
    :: else /* it waits next, and drives */
    fi;
    held[r] = false
  }
}

/* Engine::wait: a caller that finds it undone looks itself. */
inline wait(t) {
  if
  :: done[r].tensor[t]
  :: else -> rung[r] = true; done[r].tensor[t]
  fi
}

proctype Together(byte r) {
  byte me = 1, t;
  byte all = TENSORS - (r == POLLER);
  bool last;
  if
  :: r == POLLER && later -> done[r].tensor[TENSORS - 1]
  :: else
  fi;
  begin_holding();
  do
  :: t < all -> submit(t); t++
  :: else -> break
  od;
  end_holding();
  do
  :: t > 0 -> t--; wait(t)
  :: else -> break
  od
}

proctype Alone(byte r) {
  byte me = 2;
  bool last;
  submit(TENSORS - 1);
  done[r].tensor[TENSORS - 1]
}

/* ---- progress ---- */

inline flush_backlogs() {
  atomic {
    !table[me];
    do
    :: len(backlog[me]) > 0 && len(ring[me]) < CAPACITY ->
      backlog[me]?t;
      ring[me]!t;
      worked = true
    :: else -> t = 0; break
    od
  };
#ifndef MUTANT_FLUSHES_WITHOUT_A_RING
  if
  :: worked -> rung[0] = true
  :: else
  fi
#endif
}

/* MessageRing::consume, for each rank: the records that are there now. */
inline read_announcements() {
  do
  :: rank < RANKS ->
    atomic {
      do
      :: len(ring[rank]) > 0 ->
        ring[rank]?t;
        assert(order[rank].tensor[heard_of[rank]] == t + 1);
        heard_of[rank]++;
        heard[t]++;
        if
        :: heard[t] == RANKS -> schedule_backlog!t
        :: else
        fi;
        worked = true
      :: else -> t = 0; break
      od;
      rank++
    }
  :: else -> rank = 0; break
  od
}

inline publish() {
  atomic {
    do
    :: len(schedule_backlog) > 0 && len(schedule[0]) < CAPACITY && len(schedule[1]) < CAPACITY ->
      schedule_backlog?t;
      schedule[0]!t;
      schedule[1]!t;
      pushed_any = true;
      worked = true
    :: else -> t = 0; break
    od
  };
#ifndef MUTANT_PUBLISHES_WITHOUT_A_RING
  if
  :: pushed_any -> rung[1] = true
  :: else
  fi;
#endif
  pushed_any = false
}

inline read_schedule() {
  do
  :: atomic {
      len(schedule[me]) > 0 ->
      schedule[me]?t;
      done[me].tensor[t] = true;
      t = 0;
      worked = true
    }
  :: len(schedule[me]) == 0 -> break
  od
}

proctype Driver(byte me) {
  byte rank, t;
  byte heard[TENSORS], heard_of[RANKS];
  bool worked, pushed_any, retry;
  do
  :: true ->
#ifndef MUTANT_NOTES_RINGS_AFTER_THE_LOOK
    rung[me] = false;
#endif
    flush_backlogs();
    if
    :: me == 0 -> read_announcements(); publish()
    :: else
    fi;
    read_schedule();
#ifdef MUTANT_NOTES_RINGS_AFTER_THE_LOOK
    rung[me] = false;
#endif
    if
    :: worked -> worked = false
    :: else ->
      retry = len(backlog[me]) > 0 || (me == 0 && len(schedule_backlog) > 0);
end_asleep:
      if
      :: rung[me]
      :: timeout && retry
      fi;
      retry = false
    fi
  od
}

init {
  byte k;
  atomic {
    if
    :: later = true
    :: true
    fi;
    run Alone(POLLER);
    for (k : 0 .. RANKS - 1) {
      run Together(k);
      run Driver(k)
    }
  }
}
