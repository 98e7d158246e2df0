/* Survivors of a death become a smaller group, while the daemon may be killed and others may die.
 *
 * code   fabricd/pool/groups.cpp: Groups::shrink Groups::check_shrink
 * code   fabricd/pool/groups.cpp: Groups::form_group Groups::make Groups::set_member
 * code   fabricd/pool/groups.cpp: Groups::mark_dead Groups::after_member_change
 * code   fabricd/pool/groups.cpp: Groups::leave Groups::reopen_shrink Groups::finish_members
 * code   fabricd/pool/groups.cpp: Groups::answer_shrink_again
 * code   fabricd/pool/regions.cpp: Regions::reclaim_some Regions::sweep_quarantine
 * code   fabricd/pool/groups.cpp: Groups::restore
 * code   fabricd/pool/arenas.cpp: Arenas::adopted Arenas::leave
 * code   fabricd/pool/sessions.cpp: Sessions::end
 * code   fabricd/pool/waits.cpp: expire_waits
 * code   fabricd/pool/group.cpp: Group::endangers
 * code   fabricd/pool/image.cpp: Player::group_gone
 * code   libfabricshm/client/c_group.cpp: fabricshm_group_shrink enter
 * code   libfabricshm/collective/group.cpp: Group::attach Group::retire
 *
 * Sets of ranks are bit masks. Each rank has one region, into which the others of its group store while
 * they work. The daemon is one thread: what it does for one event is one step here, except that it may be
 * killed after each record of its journal and between two answers. Then it starts again from the
 * journal; a rank that waits for an answer asks again (Retry::kHarmless), within the grace.
 *
 * A rank that fails to enter the smaller group, because another one died, leaves it and asks to shrink
 * the old group again. Should others have entered, they go on without it and it gets that error.
 *
 * Holds: a region is given away only when no rank can be storing into it; a group has at most one
 * successor, and all that hear of one hear of the same; a rank gets the error that the others have gone
 * on only when they have; when all is quiet, all that live and stayed are in one group that has them
 * all and no other, and no region of the dead is kept back.
 *
 * holds  two ranks:                            -DWORLD=2 -DDEATHS=1 -DCRASHES=1
 * holds  three ranks, two deaths:              -DWORLD=3 -DDEATHS=2
 * holds  three ranks, a death and a restart:   -DWORLD=3 -DDEATHS=1 -DCRASHES=1
 * holds  a death, a goodbye and a timeout:     -DWORLD=3 -DDEATHS=1 -DGOODBYES=1 -DTIMEOUTS=1
 * holds  three ranks, two deaths, a restart:   -DWORLD=3 -DDEATHS=2 -DCRASHES=1
 * holds  four ranks, a death and a restart:    -DWORLD=4 -DDEATHS=1 -DCRASHES=1
 *
 * finds  assertion violated: -DWORLD=3 -DDEATHS=1 -DFAULT_NO_QUARANTINE
 * finds  assertion violated: -DWORLD=3 -DDEATHS=1 -DFAULT_SHRINKS_EARLY
 * finds  assertion violated: -DWORLD=3 -DDEATHS=1 -DFAULT_NO_RETIRE
 * finds  assertion violated: -DWORLD=3 -DDEATHS=1 -DCRASHES=1 -DFAULT_NO_ANSWER_AGAIN
 * finds  assertion violated: -DWORLD=3 -DDEATHS=1 -DCRASHES=1 -DFAULT_SUCCESSOR_FORGOTTEN
 * finds  assertion violated: -DWORLD=3 -DDEATHS=1 -DCRASHES=1 -DFAULT_END_WRITTEN_FIRST
 * finds  assertion violated: -DWORLD=3 -DDEATHS=1 -DCRASHES=1 -DFAULT_NO_SWEEP_AFTER_RESTART
 * finds  assertion violated: -DWORLD=3 -DDEATHS=2 -DFAULT_NOT_REOPENED
 * finds  assertion violated: -DWORLD=3 -DDEATHS=2 -DCRASHES=1 -DFAULT_EMPTY_GROUPS_KEPT
 * finds  assertion violated: -DWORLD=3 -DDEATHS=2 -DFAULT_STAYS_A_MEMBER
 */

#ifndef WORLD
#define WORLD 3
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef GOODBYES
#define GOODBYES 0
#endif
#ifndef TIMEOUTS
#define TIMEOUTS 0
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#define GROUPS (2 * (DEATHS + GOODBYES) + 2)
#define ALL ((1 << WORLD) - 1)
#define BIT(rank) (1 << (rank))
#define NONE 255
#define LOST 254 /* an error that no asking again would change: the others have gone on */

#define HELD 0
#define QUARANTINED 1
#define FREE 2

/* In the arena. */
byte attached[GROUPS];  /* ranks that have taken their place in the block */
bool broken[GROUPS];    /* GroupHeader::broken */
byte marked[GROUPS];    /* RankWords::dead */
byte storing[WORLD];    /* 1 + the group into whose members' regions the rank may be storing */

/* The processes. */
byte died = 0, gone = 0; /* gone: also those that said goodbye */
byte asks[WORLD];        /* 1 + the group that the rank waits to shrink */
byte answer[WORLD];      /* 1 + the new group, or NONE for an error */
byte leaves[WORLD];      /* 1 + the group that the rank has posted its leave of */
byte in_group[WORLD];
byte lost = 0; /* of the gone: those that got the error that the others went on without them */
byte deaths = 0, goodbyes = 0, timeouts = 0, crashes = 0;

/* The journal. The records below are these, and what a restart forgets. */
byte made = 1;           /* groups so far */
byte members[GROUPS];
byte live[GROUPS];
byte from[GROUPS];       /* NONE, or the group it takes the place of */
bool shrunk[GROUPS];     /* the record; the daemon may know more from `from` */
bool ended[GROUPS];      /* GroupGone */
byte region[WORLD];
byte sessions = 0;

/* Only in the daemon's memory. */
byte waiting[GROUPS];    /* ranks whose request to shrink is in the wait list */
bool recovered[GROUPS];

/* A group that has a successor has been shrunk, whether or not the record was written. */
inline find_successor(group) {
    successor = NONE;
    index = 0;
    do
    :: index < made ->
        if
        :: from[index] == (group) && !ended[index] ->
            assert(successor == NONE); /* never two */
            successor = index
        :: else -> skip
        fi;
        index++
    :: else -> break
    od;
    index = 0
}

#ifdef FAULT_SUCCESSOR_FORGOTTEN
#define IS_SHRUNK(group) (shrunk[group])
#else
#define IS_SHRUNK(group) (shrunk[group] || (successor != NONE && recovered[successor]))
#endif

#define KNOWN_SHRUNK(group) (shrunk[group]) /* the wait list is empty after a restart */

inline may_crash() {
#if CRASHES > 0
    if
    :: crashes < CRASHES -> goto crash
    :: skip
    fi
#else
    skip
#endif
}

/* The bytes may get another owner from here on. */
inline release(owner) {
    index = 0;
    do
    :: index < WORLD ->
        assert(index == (owner) || storing[index] == 0 ||
               (members[storing[index] - 1] & BIT(owner)) == 0);
        index++
    :: else -> break
    od;
    index = 0;
    region[owner] = FREE;
    may_crash()
}

/* Group::endangers, over all groups. */
inline endangered(owner) {
    danger = false;
    each = 0;
    do
    :: each < made ->
        find_successor(each);
        if
        :: !IS_SHRUNK(each) && live[each] != 0 && (members[each] & BIT(owner)) != 0 -> danger = true
        :: else -> skip
        fi;
        each++
    :: else -> break
    od;
    atomic { each = 0; successor = NONE }
}

inline sweep() {
    who = 0;
    do
    :: who < WORLD ->
        if
        :: region[who] == QUARANTINED ->
            endangered(who);
            if
            :: !danger -> release(who)
            :: else -> skip
            fi
        :: else -> skip
        fi;
        who++
    :: else -> break
    od;
    atomic { who = 0; danger = false }
}

inline tell(group) {
    who = 0;
    do
    :: who < WORLD ->
        if
        :: (members[group] & BIT(who)) != 0 ->
            may_crash();
            answer[who] = (group) + 1;
            asks[who] = 0
        :: else -> skip
        fi;
        who++
    :: else -> break
    od;
    who = 0
}

/* expire_wait: one survivor's timeout ends the attempt for all. */
inline expire(group, outcome) {
    who = 0;
    do
    :: who < WORLD ->
        if
        :: (waiting[group] & BIT(who)) != 0 -> answer[who] = outcome; asks[who] = 0
        :: else -> skip
        fi;
        who++
    :: else -> break
    od;
    atomic { who = 0; waiting[group] = 0 }
}

/* check_shrink, form_group: once every live member has asked. */
inline check_shrink(group) {
    if
#ifdef FAULT_SHRINKS_EARLY
    :: !KNOWN_SHRUNK(group) && waiting[group] != 0 ->
#else
    :: !KNOWN_SHRUNK(group) && waiting[group] != 0 && waiting[group] == live[group] ->
#endif
        assert(made < GROUPS);
        atomic {
            members[made] = waiting[group];
            live[made] = waiting[group];
            from[made] = group;
            waiting[group] = 0;
            made++
        }
        may_crash();
        shrunk[group] = true;
        may_crash();
        /* A rank that still waits to shrink the group before this one: the others have gone on. */
        if
        :: from[group] != NONE -> expire(from[group], LOST)
        :: else -> skip
        fi;
        sweep();
        tell(made - 1)
    :: else -> skip
    fi
}

/* after_member_change, reopen_shrink: `changed` counts down the chain of groups that end. */
inline after_member_change(group) {
    changed = group;
    do
    :: changed == NONE -> break
    :: changed != NONE ->
        check_shrink(changed);
        if
        :: live[changed] == 0 && !ended[changed] ->
            /* One record; in the journal it says both, see image.cpp. */
            ended[changed] = true;
            before = NONE;
#ifndef FAULT_NOT_REOPENED
            if
            :: from[changed] != NONE && !ended[from[changed]] && !shrunk[changed] ->
                before = from[changed];
                shrunk[before] = false
            :: else -> skip
            fi;
#endif
            may_crash();
            sweep();
            changed = before
        :: else -> sweep(); changed = NONE
        fi
    od;
    before = NONE
}

inline leave_group(rank_) {
    gid = leaves[rank_] - 1;
    leaves[rank_] = 0;
    if
    :: (live[gid] & BIT(rank_)) != 0 ->
        live[gid] = live[gid] & ~BIT(rank_);
        may_crash();
        after_member_change(gid)
    :: else -> skip
    fi;
    gid = 0
}

inline end_session(rank_) {
    /* cancel_waits */
    gid = 0;
    do
    :: gid < GROUPS -> waiting[gid] = waiting[gid] & ~BIT(rank_); gid++
    :: else -> break
    od;
#ifdef FAULT_END_WRITTEN_FIRST
    sessions = sessions & ~BIT(rank_);
    may_crash();
#endif
    gid = 0;
    do
    :: gid < made ->
        if
        :: (live[gid] & BIT(rank_)) != 0 ->
            live[gid] = live[gid] & ~BIT(rank_);
            may_crash();
            marked[gid] = marked[gid] | BIT(rank_)
        :: else -> skip
        fi;
        gid++
    :: else -> break
    od;
    if
    :: region[rank_] == HELD ->
        endangered(rank_);
#ifdef FAULT_NO_QUARANTINE
        danger = false;
#endif
        if
        :: danger -> region[rank_] = QUARANTINED; may_crash()
        :: else -> release(rank_)
        fi
    :: else -> skip
    fi;
    gid = 0;
    do
    :: gid < made ->
        if
        :: (members[gid] & BIT(rank_)) != 0 && !ended[gid] -> after_member_change(gid)
        :: else -> skip
        fi;
        gid++
    :: else -> break
    od;
    gid = 0;
    sessions = sessions & ~BIT(rank_);
    may_crash()
}

inline shrink_group(rank_) {
    gid = asks[rank_] - 1;
    find_successor(gid);
    if
    :: (live[gid] & BIT(rank_)) == 0 -> assert(false) /* it never left the group that it asks for */
    :: (live[gid] & BIT(rank_)) != 0 && IS_SHRUNK(gid) ->
        if
#ifndef FAULT_NO_ANSWER_AGAIN
        :: successor != NONE && recovered[successor] && (live[successor] & BIT(rank_)) != 0 ->
            answer[rank_] = successor + 1
#endif
        :: else ->
            if
            /* It gave its place up, and may ask for another when the rest has given up as well. */
            :: successor != NONE && !shrunk[successor] && (live[successor] & BIT(rank_)) == 0 ->
                waiting[gid] = waiting[gid] | BIT(rank_)
            :: else ->
                assert(successor != NONE && shrunk[successor]); /* the others have gone on */
                answer[rank_] = LOST
            fi
        fi;
        if
        :: answer[rank_] != 0 -> asks[rank_] = 0
        :: else -> skip
        fi
    :: (live[gid] & BIT(rank_)) != 0 && !IS_SHRUNK(gid) ->
        waiting[gid] = waiting[gid] | BIT(rank_);
        check_shrink(gid)
    fi;
    atomic { gid = 0; successor = NONE }
}

#define REQUEST(rank_) (asks[rank_] != 0 && leaves[rank_] == 0 && (gone & BIT(rank_)) == 0 && \
                        (waiting[asks[rank_] - 1] & BIT(rank_)) == 0)
#define LEAVES(rank_) (leaves[rank_] != 0 && (gone & BIT(rank_)) == 0)
#define ENDED(rank_) ((gone & BIT(rank_)) != 0 && (sessions & BIT(rank_)) != 0)

/* One turn of the control thread. */
active proctype daemon() {
    byte index = 0, each = 0, who = 0, gid = 0, successor = NONE, subject = 0, event = 0;
    byte changed = NONE, before = NONE;
    bool danger = false;
    sessions != 0; /* init has formed the first group */
end_serve:
    do
    :: atomic {
        if
        :: REQUEST(0) -> subject = 0; event = 1
        :: ENDED(0) -> subject = 0; event = 2
        :: LEAVES(0) -> subject = 0; event = 4
        :: REQUEST(1) -> subject = 1; event = 1
        :: ENDED(1) -> subject = 1; event = 2
        :: LEAVES(1) -> subject = 1; event = 4
#if WORLD > 2
        :: REQUEST(2) -> subject = 2; event = 1
        :: ENDED(2) -> subject = 2; event = 2
        :: LEAVES(2) -> subject = 2; event = 4
#endif
#if WORLD > 3
        :: REQUEST(3) -> subject = 3; event = 1
        :: ENDED(3) -> subject = 3; event = 2
        :: LEAVES(3) -> subject = 3; event = 4
#endif
#if TIMEOUTS > 0
        :: timeouts < TIMEOUTS && waiting[0] != 0 -> subject = 0; event = 3
        :: timeouts < TIMEOUTS && waiting[1] != 0 -> subject = 1; event = 3
#endif
#if CRASHES > 0
        :: crashes < CRASHES -> goto crash
#endif
        fi;
        if
        :: event == 1 -> shrink_group(subject)
        :: event == 2 -> end_session(subject)
        :: event == 4 -> leave_group(subject)
        :: event == 3 -> timeouts++; expire(subject, NONE)
        fi;
        event = 0;
        subject = 0
    }
    od;
crash:
    atomic {
        crashes++;
        index = 0;
        do
        :: index < made ->
            waiting[index] = 0;
            recovered[index] = true;
            marked[index] = marked[index] | (members[index] & ~live[index]);
            index++
        :: else -> break
        od;
        index = 0; each = 0; who = 0; gid = 0; successor = NONE; danger = false; event = 0; subject = 0;
        changed = NONE; before = NONE;
        do /* a post on its way may be lost */
        :: index < WORLD -> leaves[index] = 0; index++
        :: index < WORLD -> index++
        :: index == WORLD -> break
        od;
        index = 0;
        /* finish_members: what the one before did not live to do. */
#ifndef FAULT_EMPTY_GROUPS_KEPT
        gid = 0;
        do
        :: gid < made ->
            if
            :: live[gid] == 0 && !ended[gid] -> after_member_change(gid)
            :: else -> skip
            fi;
            gid++
        :: else -> break
        od;
        gid = 0;
#endif
#ifndef FAULT_NO_SWEEP_AFTER_RESTART
        sweep();
#endif
        goto end_serve
    }
}

#define TROUBLE(group) (broken[group] || marked[group] != 0 || (died & members[group]) != 0)
#define MAY_DIE (deaths < DEATHS && (gone | BIT(me)) != ALL)

inline die() {
    deaths++;
    died = died | BIT(me);
    gone = gone | BIT(me);
    storing[me] = 0;
    goto over
}

proctype rank(byte me) {
    byte group = 0, next = 0;
work:
    atomic { in_group[me] = group; next = 0; storing[me] = group + 1 }
end_work:
    if
    :: atomic { MAY_DIE -> die() }
    :: TROUBLE(group) -> broken[group] = true
    fi;
#if GOODBYES > 0
    if
    :: atomic { goodbyes < GOODBYES && (gone | BIT(me)) != ALL ->
                goodbyes++; storing[me] = 0; gone = gone | BIT(me); goto over }
    :: skip
    fi;
#endif
ask:
#ifndef FAULT_NO_RETIRE
    storing[me] = 0; /* Group::retire */
#endif
    asks[me] = group + 1;
    if
    :: atomic { MAY_DIE -> die() }
    :: atomic { answer[me] != 0 -> next = answer[me]; answer[me] = 0; storing[me] = 0 }
    fi;
    if
    :: atomic { next == LOST ->
        lost = lost | BIT(me); gone = gone | BIT(me); goto over }
    :: next == NONE -> goto ask /* timed out; what a survivor does then is to try again */
    :: else -> next--
    fi;
    /* Group::attach: waits for the others' clocks. */
    attached[next] = attached[next] | BIT(me);
    if
    :: atomic { MAY_DIE -> die() }
    :: (attached[next] & members[next]) == members[next] -> group = next; goto work
    :: TROUBLE(next) ->
        broken[next] = true;
#ifndef FAULT_STAYS_A_MEMBER
        leaves[me] = next + 1;
#endif
        goto ask
    fi;
over:
    skip
}

/* When nothing can happen any more. */
inline all_is_well() {
    byte each_rank = 0, common = NONE;
    do
    :: each_rank < WORLD ->
        if
        :: (gone & BIT(each_rank)) != 0 -> assert(region[each_rank] == FREE)
        :: else ->
            assert(common == NONE || common == in_group[each_rank]);
            common = in_group[each_rank];
            assert(storing[each_rank] == common + 1);
            assert(region[each_rank] == HELD);
            assert(members[common] == (ALL & ~gone))
        fi;
        each_rank++
    :: else -> break
    od
}

init {
    atomic {
        byte start = 0;
        sessions = ALL;
        members[0] = ALL;
        live[0] = ALL;
        attached[0] = ALL;
        do
        :: start < GROUPS -> from[start] = NONE; start++
        :: else -> break
        od;
        start = 0;
        do
        :: start < WORLD -> run rank(start); start++
        :: else -> break
        od;
        start = 0
    }
    atomic { timeout -> all_is_well() }
}
