/* Steps of a parameter set: ranks that are killed anywhere, that are late, and survivors that recover.
 *
 * code   libfabricshm/optim/step_words.cpp: StepWords::enter StepWords::leave StepWords::await
 * code   libfabricshm/optim/step_words.cpp: StepWords::send_away StepWords::await_absent
 * code   libfabricshm/optim/parameter_set.cpp: ParameterSet::attempt ParameterSet::step
 * code   libfabricshm/optim/parameter_set.cpp: ParameterSet::compare ParameterSet::take_over
 * code   libfabricshm/optim/parameter_recovery.cpp: ParameterSet::agree ParameterSet::decide
 * code   libfabricshm/optim/parameter_recovery.cpp: ParameterSet::finish ParameterSet::recover
 * code   libfabricshm/optim/shard_step.cpp: ShardStep::run
 *
 * The set has PIECES pieces; a piece's value is how often it has been stepped. A shard is some pieces in a
 * row, stepped one by one, each with the log of its slot. Sets of ranks are bit masks; the slot of a rank is
 * its number. A rank may be killed between any two stores. How survivors come to a smaller group is
 * shrink.pml's: here it exists once all that live have asked, or, EXCLUDED times, without one that is late
 * and may go on at any time. A meeting of a group (a barrier, an allgather) lets a rank go on when all have
 * come, even if others have failed in it since; it may fail for a rank whenever the group is broken, a member
 * is gone, or a deadline has passed.
 *
 * Not in it: what gradients are worth, steps that all ranks skip (their words are those of others), and
 * processors that reorder stores.
 *
 * Holds: at the end of each step and of each recovery every piece has been stepped exactly once for each
 * step that is counted, with the gradients that all members had for that step, and ranks agree on what was
 * applied and what was dropped; a rank that the others have gone on without never touches a piece; a rank is
 * turned back only when they have; no wait is endless. When no rank is left, a set that others would take
 * over is whole and counted right.
 *
 * holds  two ranks, both die:                     -DWORLD=2 -DDEATHS=2 -DPIECES=3
 * holds  two ranks, steps that clip:              -DWORLD=2 -DDEATHS=2 -DPIECES=3 -DCLIPS
 * holds  three ranks, two deaths:                 -DWORLD=3 -DDEATHS=2
 * holds  three ranks, a late one left behind:     -DWORLD=3 -DDEATHS=0 -DTIMEOUTS=1 -DEXCLUDED=1
 * holds  two ranks, two late, one left behind:    -DWORLD=2 -DDEATHS=1 -DTIMEOUTS=2 -DEXCLUDED=1
 * holds  two ranks, other values, late, a death:  -DWORLD=2 -DDEATHS=1 -DTIMEOUTS=1 -DOTHERS=1
 *
 * finds  assertion violated: -DWORLD=2 -DDEATHS=1 -DFAULT_NO_UNDO
 * finds  assertion violated: -DWORLD=2 -DDEATHS=1 -DFAULT_CURSOR_FIRST
 * finds  assertion violated: -DWORLD=2 -DTIMEOUTS=1 -DEXCLUDED=1 -DFAULT_ERA_NOT_RAISED
 * finds  assertion violated: -DWORLD=2 -DTIMEOUTS=1 -DEXCLUDED=1 -DFAULT_ABSENT_BEFORE_ERA
 * finds  assertion violated: -DWORLD=2 -DTIMEOUTS=2 -DEXCLUDED=1 -DFAULT_ERA_READ_LATE
 * finds  assertion violated: -DWORLD=2 -DTIMEOUTS=2 -DEXCLUDED=1 -DFAULT_RAISED_BY_ONE_ALONE
 * finds  assertion violated: -DWORLD=2 -DDEATHS=1 -DFAULT_OWN_WORD_DECIDES
 * finds  assertion violated: -DWORLD=2 -DTIMEOUTS=2 -DCLIPS -DFAULT_RESOLVED_NOT_KEPT
 * finds  assertion violated: -DWORLD=2 -DTIMEOUTS=1 -DFAULT_GRADIENT_BEFORE_DONE
 * finds  assertion violated: -DWORLD=3 -DTIMEOUTS=2 -DEXCLUDED=1 -DFAULT_GIVES_UP_ALONE
 * finds  assertion violated: -DWORLD=2 -DTIMEOUTS=1 -DOTHERS=1 -DFAULT_UNDONE_IS_CORRUPT
 * finds  assertion violated: -DWORLD=2 -DDEATHS=2 -DFAULT_WHOLE_SHARDS_PASS
 * finds  assertion violated: -DWORLD=2 -DDEATHS=2 -DFAULT_COUNTED_AFTER_DONE
 */

#ifndef WORLD
#define WORLD 3
#endif
#ifndef PIECES
#define PIECES WORLD
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 2
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#ifndef TIMEOUTS
#define TIMEOUTS 0
#endif
#ifndef EXCLUDED
#define EXCLUDED 0
#endif
#ifndef OTHERS
#define OTHERS 0
#endif
#define GROUPS (DEATHS + 2 * TIMEOUTS + OTHERS + 2)
#define TURNS (6 + 4 * TIMEOUTS)
#define ALL ((1 << WORLD) - 1)
#define BIT(rank) (1 << (rank))

/* ParameterHeader */
byte era = 0, resolved = 0, kept_steps = 0;

/* SlotRecord; signature is twice the attempt, plus 1 for other values. */
byte ready[WORLD], measured[WORLD], done[WORLD], signature[2 * WORLD];
byte inside = 0, steps_of[WORLD];
byte started[WORLD], cursor[WORLD], logged[WORLD], undo_log[WORLD];

/* The arrays. */
byte value[PIECES], gradient[WORLD];

/* Groups: ranks that have come to each meeting, and what was said there. */
byte made = 1, members_of[GROUPS], successor[GROUPS], asked[GROUPS];
bool broken[GROUPS];
byte came[GROUPS * TURNS], stuck[GROUPS * TURNS];
byte said_attempts[GROUPS * WORLD];

/* The processes: gone are those that have died or ended. */
byte dead = 0, gone = 0, deaths = 0, timeouts = 0, excluded = 0, others = 0;

/* What the model alone knows: ranks that must not touch a piece any more, and what was decided. */
byte closed = 0, ended = 0;
byte decided[2 * ATTEMPTS + 4]; /* 1: applied, 2: dropped */

#define IN(set, rank) (((set) >> (rank)) & 1)
#if WORLD == 2
#define COUNT(set) (IN(set, 0) + IN(set, 1))
#define BELOW(set, rank) ((rank) == 1 && IN(set, 0))
#else
#define COUNT(set) (IN(set, 0) + IN(set, 1) + IN(set, 2))
#define BELOW(set, rank) (((rank) > 0 && IN(set, 0)) + ((rank) > 1 && IN(set, 1)))
#endif
#ifdef CLIPS
#define ALL_MEASURED ALL_HAVE(measured)
#else
#define ALL_MEASURED true
#endif
#define FIRST(set) (IN(set, 0) -> 0 : (IN(set, 1) -> 1 : 2))

/* cut_shards */
#define BEGIN_OF(set, rank) ((BELOW(set, rank) * PIECES) / COUNT(set))
#define END_OF(set, rank) (((BELOW(set, rank) + 1) * PIECES) / COUNT(set))

/* Of the members' words, in the attempt `number` of the process. */
#define REACHED(word, rank) (!IN(members, rank) || word[rank] >= number)
#define IS_LOST(word, rank) (IN(members & gone, rank) && word[rank] < number)
#define IS_ALIKE(rank) \
    (!IN(members, rank) || signature[2 * (rank) + (number & 1)] == signature[2 * me + (number & 1)])
#define HAS_GRADIENT(rank) (!IN(members, rank) || gradient[rank] == number)
#if WORLD == 2
#define ALL_HAVE(word) (REACHED(word, 0) && REACHED(word, 1))
#define ONE_IS_LOST(word) (IS_LOST(word, 0) || IS_LOST(word, 1))
#define ALL_ALIKE (IS_ALIKE(0) && IS_ALIKE(1))
#define ALL_GRADIENTS (HAS_GRADIENT(0) && HAS_GRADIENT(1))
#else
#define ALL_HAVE(word) (REACHED(word, 0) && REACHED(word, 1) && REACHED(word, 2))
#define ONE_IS_LOST(word) (IS_LOST(word, 0) || IS_LOST(word, 1) || IS_LOST(word, 2))
#define ALL_ALIKE (IS_ALIKE(0) && IS_ALIKE(1) && IS_ALIKE(2))
#define ALL_GRADIENTS (HAS_GRADIENT(0) && HAS_GRADIENT(1) && HAS_GRADIENT(2))
#endif

/* StepWords::await, on all others. */
#if TIMEOUTS > 0
#define OR_LATE(word) \
    :: atomic { !ALL_HAVE(word) && timeouts < TIMEOUTS -> timeouts++; broken[group] = true; goto failed }
#else
#define OR_LATE(word)
#endif
#define AWAIT(word) \
    if \
    :: ALL_HAVE(word) -> skip \
    :: atomic { !ALL_HAVE(word) && (broken[group] || ONE_IS_LOST(word)) -> \
                broken[group] = true; goto failed } \
    OR_LATE(word) \
    fi

/* Group::run, of what all members take part in. */
inline meet() {
    atomic {
        assert(turn < TURNS);
        came[group * TURNS + turn] = came[group * TURNS + turn] | BIT(me)
    }
    if
    :: atomic { (came[group * TURNS + turn] & members_of[group]) == members_of[group] -> turn++ }
    :: atomic { broken[group] || (gone & members_of[group]) != 0 -> broken[group] = true; goto unrecovered }
#if TIMEOUTS > 0
    :: atomic { (came[group * TURNS + turn] & members_of[group]) != members_of[group] &&
                timeouts < TIMEOUTS -> timeouts++; broken[group] = true; goto unrecovered }
#endif
    fi
}

/* ShardStep::run */
inline run_shard(slot) {
    d_step {
        if
        :: started[slot] != number ->
            cursor[slot] = BEGIN_OF(members, slot);
            logged[slot] = cursor[slot];
            started[slot] = number
        :: else -> skip
        fi;
        at = cursor[slot];
        assert(at >= BEGIN_OF(members, slot) && at <= END_OF(members, slot));
    }
#ifndef FAULT_NO_UNDO
    if
    :: atomic { logged[slot] > at -> assert(!IN(closed, me)); value[at] = undo_log[slot] }
    :: else -> skip
    fi;
#endif
    do
    :: at < END_OF(members, slot) ->
        atomic {
            assert(ALL_GRADIENTS);
            was = value[at];
            undo_log[slot] = was
        }
        logged[slot] = at + 1;
#ifdef FAULT_CURSOR_FIRST
        cursor[slot] = at + 1;
        d_step { assert(!IN(closed, me)); value[at] = was + 1; was = 0; at++ }
#else
        d_step { assert(!IN(closed, me)); value[at] = was + 1; was = 0 }
        d_step { cursor[slot] = at + 1; at++ }
#endif
    :: else -> at = 0; break
    od
}

/* Of one attempt, by one rank. */
inline conclude(attempt, outcome) {
    assert(decided[attempt] == 0 || decided[attempt] == outcome);
    decided[attempt] = outcome
}

/* The rank is inside: nothing goes on without it. */
inline check_pieces(steps) {
    at = 0;
    do
    :: at < PIECES -> assert(value[at] == steps); at++
    :: else -> at = 0; break
    od
}

#define ABSENT (members & ~members_of[group])

proctype rank(byte me) {
    byte group = 0, members = ALL, own_era = 0, attempts = 0, applied = 0, pending = 0;
    byte turn = 0, number = 0, at = 0, was = 0, slot = 0, nth = 0, steps = 0, new_era = 0, last = 0;
    {
    skip;
step:
    if
    :: attempts >= ATTEMPTS -> goto end
    :: else -> skip
    fi;
    gradient[me] = attempts + 1;
    /* StepWords::enter */
    inside = inside | BIT(me);
    if
    :: own_era == era -> skip
    :: own_era != era ->
        d_step {
            assert(successor[group] != 0 && !IN(members_of[successor[group]], me));
            inside = inside & ~BIT(me)
        }
        goto ask
    fi;
    /* ParameterSet::attempt */
    d_step { attempts++; number = attempts }
    if
    :: signature[2 * me + (number & 1)] = 2 * number
#if OTHERS > 0
    :: atomic { others < OTHERS -> others++; signature[2 * me + (number & 1)] = 2 * number + 1 }
#endif
    fi;
    ready[me] = number;
    AWAIT(ready);
    if
    :: atomic { !ALL_ALIKE ->
        conclude(number, 2);
        check_pieces(applied);
        inside = inside & ~BIT(me);
        number = 0;
        goto step
      }
    :: else -> skip
    fi;
#ifdef CLIPS
    measured[me] = number;
    AWAIT(measured);
#endif
    run_shard(me);
#ifndef FAULT_COUNTED_AFTER_DONE
    steps_of[me] = applied + 1;
#endif
    done[me] = number;
#ifndef FAULT_GRADIENT_BEFORE_DONE
    AWAIT(done);
    d_step { check_pieces(applied + 1) }
#endif
    d_step { conclude(number, 1); applied++; number = 0 }
#ifdef FAULT_COUNTED_AFTER_DONE
    steps_of[me] = applied;
#endif
    inside = inside & ~BIT(me);
    goto step;

failed:
    atomic { pending = number; number = 0; inside = inside & ~BIT(me) }
    goto ask;
unrecovered:
    atomic { number = 0; at = 0; was = 0; slot = 0; nth = 0; steps = 0; new_era = 0; turn = 0; last = 0;
             inside = inside & ~BIT(me) }
ask:
    /* fabricshm_group_shrink */
    atomic { broken[group] = true; asked[group] = asked[group] | BIT(me) }
    if
    :: atomic { successor[group] != 0 && IN(members_of[successor[group]], me) -> group = successor[group] }
    :: atomic { successor[group] != 0 && !IN(members_of[successor[group]], me) -> goto over }
    :: d_step { successor[group] == 0 && (members_of[group] & ~gone & ~asked[group]) == 0 ->
        assert(made < GROUPS);
        members_of[made] = members_of[group] & ~gone;
        successor[group] = made;
        group = made;
        made++
      }
#if EXCLUDED > 0
    :: d_step { successor[group] == 0 && excluded < EXCLUDED &&
                COUNT((members_of[group] & ~gone & ~asked[group])) == 1 ->
        excluded++;
        assert(made < GROUPS);
        members_of[made] = members_of[group] & ~gone & asked[group];
        successor[group] = made;
        group = made;
        made++
      }
#endif
    fi;
recover:
    inside = inside | BIT(me);
    /* ParameterSet::agree */
    said_attempts[group * WORLD + me] = attempts;
    meet();
    d_step {
        slot = 0;
        do
        :: slot < WORLD ->
            if
            :: IN(members_of[group], slot) && said_attempts[group * WORLD + slot] > number ->
                number = said_attempts[group * WORLD + slot]
            :: else -> skip
            fi;
            slot++
        :: else -> slot = 0; break
        od
    }
#ifdef FAULT_ABSENT_BEFORE_ERA
    (inside & ABSENT & ~dead) == 0;
#endif
    /* ParameterSet::decide. A rank that is late finds what the others have said, but not here. */
#ifndef FAULT_RAISED_BY_ONE_ALONE
    meet();
#endif
    /* StepWords::send_away */
    if
#ifndef FAULT_ERA_NOT_RAISED
    :: me == FIRST(members_of[group]) -> era++
#endif
    :: else -> skip
    fi;
    meet();
    /* StepWords::await_absent: the ranks agree on whether any of them had to give up. */
    if
#ifdef FAULT_ABSENT_BEFORE_ERA
    :: skip
#else
    :: (inside & ABSENT & ~dead) == 0 -> skip
#endif
#if TIMEOUTS > 0
    :: atomic { (inside & ABSENT & ~dead) != 0 && timeouts < TIMEOUTS ->
                timeouts++;
#ifdef FAULT_GIVES_UP_ALONE
                inside = inside & ~BIT(me); number = 0; goto recover
#else
                stuck[group * TURNS + turn] = stuck[group * TURNS + turn] | BIT(me)
#endif
              }
#endif
    fi;
    new_era = era;
    meet();
    if
    :: atomic { stuck[group * TURNS + turn - 1] != 0 ->
        inside = inside & ~BIT(me);
        number = 0;
        new_era = 0;
        goto recover /* calls again */
      }
    :: else -> skip
    fi;
    d_step {
        closed = closed | (ALL & ~members_of[group]);
        last = number;
        slot = 0;
        do
        :: slot < WORLD ->
            last = (IN(members, slot) && ready[slot] > last -> ready[slot] : last);
            slot++
        :: else -> slot = 0; break
        od;
        steps = applied
    }
    if
    :: resolved >= number || (pending != 0 && pending < number && resolved >= pending) ->
        /* Another recovery came so far. */
        d_step {
            steps = kept_steps;
            last = (resolved > last -> resolved : last)
        }
        if
        :: resolved >= number -> goto agreed
        :: else -> skip
        fi
    :: else ->
        if
        :: d_step { pending != 0 && pending < number ->
            at = number;
            number = pending;
            if
            :: ALL_HAVE(done) -> steps++
            :: else ->
#ifdef FAULT_UNDONE_IS_CORRUPT
                assert(false)
#else
                assert(!ALL_ALIKE) /* kCorrupt */
#endif
            fi;
            number = at;
            at = 0
          }
        :: else ->
            /* ParameterSet::finish */
            if
            :: ALL_HAVE(done) -> steps = (pending != 0 -> steps + 1 : steps)
#ifdef FAULT_OWN_WORD_DECIDES
            :: !ALL_HAVE(done) && pending == number && ready[me] >= number ->
#else
            :: !ALL_HAVE(done) && pending == number && ALL_HAVE(ready) &&
               ALL_ALIKE && ALL_MEASURED ->
#endif
                slot = 0;
                do
                :: slot < WORLD ->
                    if
                    :: IN(members, slot) && done[slot] < number &&
                       (slot == me || (!IN(members_of[group], slot) &&
                                       (nth % COUNT(members_of[group])) == BELOW(members_of[group], me))) ->
                        run_shard(slot);
                        steps_of[slot] = applied + 1;
                        done[slot] = number
                    :: else -> skip
                    fi;
                    d_step {
                        nth = (IN(ABSENT, slot) -> nth + 1 : nth);
                        slot++
                    }
                :: else -> break
                od;
                atomic { slot = 0; nth = 0; steps++ }
            :: else -> skip
            fi
        fi
    fi;
    meet();
#ifndef FAULT_RESOLVED_NOT_KEPT
    if
    :: me == FIRST(members_of[group]) -> kept_steps = steps; resolved = last
    :: else -> skip
    fi;
#endif
agreed:
    meet();
    d_step {
        assert(steps == applied || pending != 0);
        if
        :: pending != 0 -> conclude(pending, (steps > applied -> 1 : 2))
        :: else -> skip
        fi;
        check_pieces(steps);
        applied = steps;
        attempts = last;
        pending = 0;
        turn = 0;
        members = members_of[group];
#ifdef FAULT_ERA_READ_LATE
    }
    own_era = era;
    d_step {
#else
        own_era = new_era;
#endif
        number = 0; steps = 0; new_era = 0; last = 0
    }
    inside = inside & ~BIT(me);
    goto step;
end:
    atomic { ended = ended | BIT(me); gone = gone | BIT(me) }
over:
    atomic { gone = gone | BIT(me) }
    } unless { IN(dead, me) }
}

active proctype reaper() {
    byte victim = 0;
end_reaper:
    do
    :: atomic { deaths < DEATHS && gone != ALL ->
        if
        :: !IN(gone, 0) -> victim = 0
        :: !IN(gone, 1) -> victim = 1
#if WORLD > 2
        :: !IN(gone, 2) -> victim = 2
#endif
        fi;
        deaths++;
        dead = dead | BIT(victim);
        gone = gone | BIT(victim);
        victim = 0
      }
    od
}

/* ParameterSet::take_over, by others, when all have ended. */
inline take_over() {
    byte index = 0, newest = 0, steps = 0;
    bool refused = false;
    do
    :: index < WORLD ->
        newest = (started[index] > newest -> started[index] : newest);
        steps = (steps_of[index] > steps -> steps_of[index] : steps);
        refused = refused || started[index] > done[index];
        index++
    :: else -> break
    od;
    steps = (kept_steps > steps -> kept_steps : steps);
#ifndef FAULT_WHOLE_SHARDS_PASS
    index = 0;
    do
    :: index < WORLD ->
        refused = refused || (ready[index] >= newest && done[index] < newest);
        index++
    :: else -> break
    od;
#endif
    index = 0;
    do
    :: index < PIECES -> assert(refused || value[index] == steps); index++
    :: else -> break
    od;
    assert(!refused || ended == 0)
}

init {
    atomic {
        byte start = 0;
        members_of[0] = ALL;
        do
        :: start < WORLD -> run rank(start); start++
        :: else -> break
        od;
        start = 0
    }
    atomic { gone == ALL -> take_over() }
}
