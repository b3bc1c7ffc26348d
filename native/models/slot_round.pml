/* Small operations that bypass the coordinator, or use it: transport/arena/slot_round.h,
 * engine/submission/direct_rounds.cc, and the handling of slots in Submissions, Coordination and
 * Coordinator. See README.md.
 *
 * MEMBERS ranks reduce one tensor ROUNDS times. Each time, each of them freely chooses to try the
 * direct way, or to announce the tensor to the coordinator; a direct one may give up at any time.
 * The coordinator may take the tensor's slot away once, and gives it back when no rank can refer
 * to it any more. It sleeps until it is rung, except for LOOKS times.
 *
 * With STAGE, direct data is published on a stage (engine/submission/direct_stage.h) that has room
 * for one round's data: a rank that cannot tell whether the others have read it announces the next
 * one.
 *
 * With ROOT, only member 0 publishes data, as in a broadcast. */

#ifndef MEMBERS
#define MEMBERS 2
#endif
#ifndef ROUNDS
#define ROUNDS 3
#endif
#ifndef LOOKS
#define LOOKS 1
#endif
#define ENTRIES (ROUNDS + 1)
#ifdef ROOT
#define PUBLISHERS 1
#else
#define PUBLISHERS MEMBERS
#endif

/* The slot's word. Every update is one step: a compare-and-swap. */
byte round, direct, announced;
bool overruled;

byte data[MEMBERS]; /* direct_data of even rounds: the number of its operation */
byte odd[MEMBERS];  /* and of odd rounds */
#if defined(MUTANT_ONE_BUFFER) || defined(STAGE)
#define put_data(r, m, v) data[m] = v
#define get_data(r, m) data[m]
#else
#define put_data(r, m, v) \
  if \
  :: (r) % 2 == 0 -> data[m] = v \
  :: else -> odd[m] = v \
  fi
#define get_data(r, m) ((r) % 2 == 0 -> data[m] : odd[m])
#endif

#ifdef STAGE
bool in_use[MEMBERS];     /* this rank's stage */
byte staged_for[MEMBERS]; /* the round */
byte finished[MEMBERS];   /* this rank has read the data staged for earlier rounds */
inline take_stage() {
  atomic {
#ifdef MUTANT_STAGE_IS_FREE_WHEN_THE_ROUND_HAS_ENDED
    has_room = (!in_use[me] || round >= staged_for[me] + 1);
#else
    has_room = (!in_use[me] || round >= staged_for[me] + 2);
#endif
    if
    :: !has_room ->
#ifdef MUTANT_STAGE_IS_FREE_WHEN_ITS_OWNER_HAS_FINISHED
      has_room = finished[me] >= staged_for[me] + 1;
#else
      has_room = true;
      for (k : 0 .. MEMBERS - 1) { has_room = has_room && finished[k] >= staged_for[me] + 1 }
      k = 0
#endif
    :: else
    fi;
    if
    :: has_room -> in_use[me] = true; staged_for[me] = mine
    :: else
    fi
  }
}
#define give_back_stage() in_use[me] = false
#define has_finished() finished[me] = mine + 1
#else
#define take_stage() skip
#define give_back_stage() skip
#define has_finished() skip
#endif

/* How each operation was done: the same way on all ranks. */
#define UNKNOWN 0
#define DIRECT 1
#define SCHEDULED 2
byte way[ROUNDS];

/* Announcements: at most one per rank is under way. */
#define NONE 0
#define BY_SLOT 1
#define BY_DESCRIPTION 2
byte ring[MEMBERS];
bool rung; /* the coordinator's doorbell */

/* The schedule. */
#define BATCH 1
#define BATCH_WITH_SLOT 2
#define EVICT 3
byte schedule[ENTRIES];
byte written;
byte passed[MEMBERS];

inline add_announced() {
  overruled = true;
  announced++;
  last = announced == MEMBERS;
  if
  :: last -> round++; direct = 0; announced = 0; overruled = false
  :: else
  fi
}

inline do_it(how) {
  d_step {
    assert(way[op] == UNKNOWN || way[op] == how);
    way[op] = how;
    pending = false
  }
}

/* engine/submission/direct_rounds.cc */
inline finish_direct() {
  d_step {
    for (k : 0 .. PUBLISHERS - 1) { assert(get_data(mine, k) == op + 1) }
    k = 0
  };
  has_finished();
  do_it(DIRECT);
  is_direct = false
}

inline settle_direct() {
  atomic {
#ifdef MUTANT_SETTLES_WITHOUT_A_LOOK_AT_THE_ROUND
    complete = false;
#else
    complete = (round != mine);
#endif
    if
    :: !complete -> direct--; add_announced()
    :: else
    fi
  };
  if
  :: complete -> finish_direct()
  :: else ->
    give_back_stage();
    is_direct = false;
    assert(ring[me] == NONE);
    ring[me] = BY_SLOT;
#ifdef MUTANT_SETTLING_RINGS_IF_LAST
    if
    :: last -> rung = true
    :: else
    fi
#else
    rung = true
#endif
  fi;
  complete = false;
  last = false
}

inline leave_direct() {
  atomic {
    complete = (round != mine);
    if
    :: !complete ->
      direct--;
      overruled = true
    :: else
    fi
  };
  if
  :: complete -> finish_direct()
  :: else -> give_back_stage(); is_direct = false; ring[me] = BY_DESCRIPTION; rung = true
  fi;
  complete = false
}

/* Submissions::announce, under its mutex: nothing else happens on this rank meanwhile. */
inline announce() {
#ifdef MUTANT_COUNTS_BEFORE_ANNOUNCING
  if
  :: has_slot -> atomic { add_announced() }
  :: else -> last = true
  fi;
  ring[me] = (has_slot -> BY_SLOT : BY_DESCRIPTION);
#else
  assert(ring[me] == NONE);
  ring[me] = (has_slot -> BY_SLOT : BY_DESCRIPTION);
  if
  :: has_slot -> atomic { add_announced() }
  :: else -> last = true
  fi;
#endif
  if
  :: last -> rung = true; last = false
  :: else
  fi
}

/* ScheduleReader::read: effects first, then the position. */
inline read_entry() {
  if
  :: schedule[passed[me]] == EVICT ->
    has_slot = false;
    if
    :: is_direct -> leave_direct()
    :: else
    fi
  :: schedule[passed[me]] == BATCH -> do_it(SCHEDULED)
  :: schedule[passed[me]] == BATCH_WITH_SLOT -> has_slot = true; do_it(SCHEDULED)
  fi;
  passed[me]++;
}

#define news (passed[me] < written)

proctype Member(byte me) {
  byte op, k, mine;
  bool has_slot = true, pending, is_direct, last, complete, has_room = true;
  do
  :: op == ROUNDS -> break
  :: op < ROUNDS ->
    pending = true;
    if
    :: has_slot ->
      /* arrive_direct */
      mine = round;
      if
      :: me < PUBLISHERS -> take_stage()
      :: else
      fi;
      if
      :: has_room && me < PUBLISHERS -> put_data(mine, me, op + 1)
      :: else
      fi;
      atomic {
#ifdef MUTANT_DIRECT_BESIDE_ANNOUNCED
        if
        :: has_room && round == mine ->
#elif defined(MUTANT_ARRIVES_IN_WHATEVER_ROUND_IT_IS)
        if
        :: has_room && announced == 0 && !overruled -> mine = round;
#else
        if
        :: has_room && round == mine && announced == 0 && !overruled ->
#endif
          is_direct = true;
          direct++;
          if
          :: direct == MEMBERS -> round++; direct = 0
          :: else
          fi
        :: else ->
          if
          :: has_room -> give_back_stage()
          :: else -> has_room = true
          fi
        fi
      };
      if
      :: !is_direct -> announce()
      :: else
      fi
    :: true -> announce()
    fi;
    do
    :: !pending -> break
    :: pending && news -> read_entry()
    :: pending && is_direct -> settle_direct()
    od;
    op++;
    mine = 0;
    /* Between two operations the engine's thread may read entries. */
    do
    :: news -> read_entry()
    :: true -> break
    od
  od;
end_idle:
  do
  :: news -> read_entry()
  od
}

active proctype Coordinator() {
  bool by[MEMBERS];
  bool has_slot = true, evicted, may_evict = true, released;
  byte k, heard, looks, position;
end_asleep:
  do
  :: atomic {
      if
      :: rung -> rung = false
      :: !rung && evicted /* it looks every few milliseconds */
      :: !rung && !evicted && looks < LOOKS -> looks++
      fi
    };
    /* Coordination::coordinate */
#ifndef MUTANT_LOOKS_WHO_HAS_PASSED_AFTER_READING
    d_step {
      released = evicted;
      for (k : 0 .. MEMBERS - 1) { released = released && passed[k] >= position }
    };
#endif
    for (k : 0 .. MEMBERS - 1) {
      atomic {
        if
        :: ring[k] == NONE
        :: else ->
          assert(!by[k]);
          assert(ring[k] == BY_DESCRIPTION || has_slot || evicted);
          by[k] = true;
          heard++;
          ring[k] = NONE
        fi
      }
    }
#ifdef MUTANT_LOOKS_WHO_HAS_PASSED_AFTER_READING
    atomic {
      released = evicted;
      for (k : 0 .. MEMBERS - 1) { released = released && passed[k] >= position }
    };
#endif
#ifdef MUTANT_SLOT_COMES_BACK_AT_ONCE
    released = evicted;
#endif
    atomic {
      if
      :: released ->
        evicted = false;
        /* SlotRound::reset: no rank is in a round */
        assert(direct == 0);
        round = round + 2;
        announced = 0;
        overruled = false
      :: else
      fi;
      released = false;
      k = 0;
      if
      :: heard == MEMBERS ->
        for (k : 0 .. MEMBERS - 1) { by[k] = false }
        k = 0;
        heard = 0;
        if
        :: !has_slot && !evicted -> has_slot = true; schedule[written] = BATCH_WITH_SLOT
        :: else -> schedule[written] = BATCH
        fi;
        written++
      :: heard == 0 && has_slot && may_evict ->
        may_evict = false;
        has_slot = false;
        evicted = true;
        schedule[written] = EVICT;
        written++;
        position = written
      :: heard < MEMBERS -> skip
      fi
    }
  od
}

init {
  byte k;
  atomic {
    for (k : 0 .. MEMBERS - 1) { run Member(k) }
  }
}
