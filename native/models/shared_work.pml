/* Who may do pieces of shared work, and when its memory is free: SharedWork in
 * transport/arena/shared_work.h and SharedSum in engine/submission/shared_sum.h. See README.md.
 *
 * MEMBERS ranks do ROUNDS direct rounds of one slot. Each publishes its data in a place that
 * nobody reads any more, arrives, and waits for all. Then any running rank claims pieces of the
 * sum and writes them into the result; a rank that finds none left waits for the others' pieces,
 * or gives the work up for all and reads all data itself. A member may stop for ever while it
 * works on a piece.
 *
 * Data and results are tagged with their round; readers look twice. */

#ifndef MEMBERS
#define MEMBERS 3
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef PIECES
#define PIECES 2
#endif

#define PLACES 2

typedef Data { byte tag[PLACES]; byte kept[PLACES]; byte place[2] } /* place: of even and odd rounds */
Data data[MEMBERS]; /* kept: 1 + the round for which a place must stay; 0 = free */
typedef Result { byte piece[PIECES] }
Result result[2];
byte arrived[ROUNDS];
byte finished[MEMBERS]; /* rounds */
bool one_has_stopped;

/* SharedWork's word. */
byte word_round, claimed, pieces_done;
bool given_up;

inline as_of_this_round() {
  if
  :: word_round != 1 + round -> word_round = 1 + round; claimed = 0; pieces_done = 0; given_up = false
  :: else
  fi
}

inline publish() {
  d_step { /* places that all have finished with are free */
    for (p : 0 .. PLACES - 1) {
      if
      :: data[me].kept[p] != 0 ->
        free = true;
        for (m : 0 .. MEMBERS - 1) {
          if
          :: finished[m] < data[me].kept[p] -> free = false
          :: else
          fi
        }
        if
        :: free -> data[me].kept[p] = 0
        :: else
        fi
      :: else
      fi
    }
    if
    :: data[me].kept[0] == 0 -> place = 0
    :: else -> place = 1
    fi;
    assert(data[me].kept[place] == 0);
    data[me].kept[place] = 1 + round;
    data[me].place[round % 2] = place;
    data[me].tag[place] = 255
  };
  data[me].tag[place] = 1 + round
}

inline check_data() {
  d_step {
    for (m : 0 .. MEMBERS - 1) {
      assert(data[m].tag[data[m].place[round % 2]] == 1 + round)
    }
  }
}

inline check_result() {
  d_step {
    for (p : 0 .. PIECES - 1) { assert(result[round % 2].piece[p] == 1 + round) }
  }
}

#ifdef MUTANT_COMPLETE_WHEN_ALL_ARE_CLAIMED
#define COMPLETE (word_round == 1 + round && !given_up && claimed == PIECES)
#else
#define COMPLETE (word_round == 1 + round && !given_up && pieces_done == PIECES)
#endif
#define GIVEN_UP (word_round == 1 + round && given_up)

proctype Member(byte me) {
  byte round, p, m, place, piece;
  bool free, mine, complete;
  do
  :: round < ROUNDS ->
    publish();
    arrived[round]++;
end_waiting: /* because one has stopped: then the operation is announced */
    arrived[round] == MEMBERS;
    mine = true;
    do
    :: mine ->
      atomic {
        as_of_this_round();
        mine = !given_up && claimed < PIECES;
        if
        :: mine -> piece = claimed; claimed++
        :: else
        fi
      };
      if
      :: mine
      :: else -> break
      fi;
      check_data();
#ifdef MUTANT_DONE_BEFORE_WRITING
      atomic { as_of_this_round(); pieces_done++ };
#endif
      if
      :: true
      :: d_step { !one_has_stopped -> one_has_stopped = true };
end_stopped:
        false
      fi;
      check_data();
      result[round % 2].piece[piece] = 255;
      result[round % 2].piece[piece] = 1 + round;
#ifndef MUTANT_DONE_BEFORE_WRITING
      atomic { as_of_this_round(); pieces_done++ }
#endif
    od;
    complete = false;
    if
    :: COMPLETE -> complete = true
    :: GIVEN_UP
    :: true -> /* has waited too long */
#ifndef MUTANT_GIVES_UP_FOR_ITSELF
      atomic {
        as_of_this_round();
#ifndef MUTANT_GIVES_UP_WHAT_IS_COMPLETE
        if
        :: pieces_done != PIECES -> given_up = true
        :: else
        fi;
#ifdef MUTANT_DONE_ALTHOUGH_GIVEN_UP
        complete = pieces_done == PIECES
#else
        complete = !given_up
#endif
#else
        given_up = true
#endif
      }
#endif
    fi;
    if
    :: complete ->
      check_result();
      check_result();
      data[me].kept[data[me].place[round % 2]] = 0
    :: else ->
      check_data();
      check_data();
#ifdef MUTANT_DATA_ARE_FREE_ALTHOUGH_GIVEN_UP
      data[me].kept[data[me].place[round % 2]] = 0
#else
      skip
#endif
    fi;
    finished[me] = 1 + round;
    round++
  :: else -> break
  od
}

init {
  byte i;
  atomic {
    for (i : 0 .. MEMBERS - 1) { run Member(i) }
  }
}
