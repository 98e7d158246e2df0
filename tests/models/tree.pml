/* A barrier along the tree: no rank goes on before all have come, and all end when one dies.
 *
 * code   libfabricshm/collective/barrier.cpp: Barrier::gather Barrier::await_release Barrier::release
 * code   libfabricshm/collective/barrier.cpp: Barrier::pass_along_tree Barrier::check_release
 * code   libfabricshm/collective/tree.cpp: collect post_up hand_down run_along_tree
 *
 * Rank 0 is above ranks 1 and 2; rank 1 is above rank 3, and with DEEP rank 3 is above rank 4. All go
 * through ROUNDS barriers with one post and one release of each rank, which are used again in every
 * round: the post carries the set of ranks from here down that have come and the round it is of, the
 * release what the root made of it. A rank waits for its children one after the other, posts, raises
 * its clock, waits for the release of the one above, and releases its own.
 *
 * Every step is one store or one load; the order of stores is kept, as x86 and release keep it. What a
 * sleeper and a waker owe each other is in sleep.pml; here a waiter polls until it sees.
 *
 * With DEATH one rank may die wherever it stands. A waiter checks the neighbour it waits for, and
 * the word that says that the group is broken; one that finds its neighbour dead breaks the group
 * with its name. With ASTRAY that rank takes the last round for an operation of another kind, in
 * which it needs no other: it raises its clock without having shown what the others call, and goes.
 *
 * holds  three levels, three rounds:           -DROUNDS=3
 * holds  four levels, two rounds:              -DDEEP
 * holds  any rank may die:                     -DDEATH
 * holds  any rank may die, four levels:        -DDEATH -DDEEP
 * holds  the root takes part in something else: -DASTRAY=0
 * holds  a rank takes part in something else:  -DASTRAY=1
 * leads  all end, in every fair run:           -DDEATH -DROUNDS=1 -DEVENTUALLY
 *
 * finds  assertion violated: -DFAULT_POST_BEFORE_CHILDREN
 * finds  assertion violated: -DFAULT_RELEASE_BEFORE_ABOVE
 * finds  assertion violated: -DFAULT_FLAG_BEFORE_DATA
 * finds  assertion violated: -DFAULT_ROOT_SKIPS_ONE
 * finds  assertion violated: -DFAULT_DATA_AFTER_RELEASE
 * finds  assertion violated: -DDEATH -DFAULT_OWN_NAME
 * finds  invalid end state:  -DDEATH -DFAULT_NO_LOOK_AT_ABOVE
 * finds  invalid end state:  -DDEATH -DFAULT_TELLS_NOBODY
 * finds  invalid end state:  -DASTRAY=0 -DFAULT_NO_LOOK_AT_CALL
 */

#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifdef DEEP
#define RANKS 5
#else
#define RANKS 4
#endif
/* Bytes of one round are distinguished from those of the one before it. */
#define mark_of(round) (32 << (round % 2))
#define all_of(round) (((1 << RANKS) - 1) | mark_of(round))
#define NONE 255

byte clock[RANKS];      /* RankWords::clock */
byte called[RANKS];     /* the round of which the rank shows its signature */
byte post_flag[RANKS];  /* TreePost */
byte post_data[RANKS];
byte down_flag[RANKS];  /* TreeRelease */
byte down_data[RANKS];
byte came[RANKS];       /* what the model knows: the last round each rank came to */
bool dead[RANKS];
byte victim = NONE;
byte broken = NONE;     /* GroupHeader::broken: the rank it names */
byte ended = 0;

#define parent_of(rank) (rank == 3 -> 1 : (rank == 4 -> 3 : 0))
#define first_child(rank) (rank == 0 -> 1 : (rank == 1 -> 3 : (rank == 3 && RANKS == 5 -> 4 : NONE)))
#define next_child(rank) (rank == 1 -> 2 : NONE)

inline may_die() {
#ifdef DEATH
    if
    :: atomic { victim == NONE -> victim = me; dead[me] = true; goto gone }
    :: skip
    fi
#else
    skip
#endif
}

/* Breaks the group; the first name stays. */
inline name(rank) {
#ifndef FAULT_TELLS_NOBODY
    atomic {
        if
        :: broken == NONE ->
#ifdef FAULT_OWN_NAME
            broken = me
#else
            broken = rank
#endif
        :: else -> skip
        fi
    }
#else
    skip
#endif
}

proctype rank(byte me) {
    byte round = 1;
    byte child = NONE;
    byte data = 0;
    do
    :: round > ROUNDS -> break
    :: round <= ROUNDS ->
        may_die();
#ifdef ASTRAY
        if
        :: me == ASTRAY && round == ROUNDS -> clock[me] = round; goto out
        :: else -> skip
        fi;
#endif
        atomic { called[me] = round; came[me] = round };
        data = (1 << me) | mark_of(round);
        child = first_child(me);
#ifdef FAULT_POST_BEFORE_CHILDREN
        if
        :: me == 1 -> child = NONE
        :: else -> skip
        fi;
#endif
#ifdef FAULT_ROOT_SKIPS_ONE
        if
        :: me == 0 -> child = 2
        :: else -> skip
        fi;
#endif
        do
        :: child == NONE -> break
        :: else ->
            if
            :: post_flag[child] == round -> skip
            :: post_flag[child] != round && clock[child] >= round ->
                /* Perhaps by another route: checks once more. */
                if
                :: post_flag[child] == round -> skip
                :: else -> name(child); goto out
                fi
            :: broken != NONE -> goto out
            :: dead[child] && post_flag[child] != round -> name(child); goto out
            fi;
            data = data | post_data[child];
            child = next_child(child)
        od;
        may_die();
        if
        :: me == 0 -> skip
        :: else ->
#ifdef FAULT_FLAG_BEFORE_DATA
            post_flag[me] = round;
            post_data[me] = data
#else
            post_data[me] = data;
            post_flag[me] = round
#endif
        fi;
        clock[me] = round;
        may_die();
        if
#ifdef FAULT_RELEASE_BEFORE_ABOVE
        :: me == 1 -> data = all_of(round)
#endif
        :: me == 0 -> skip
        :: else ->
            if
            :: down_flag[parent_of(me)] >= round -> skip
            :: broken != NONE && down_flag[parent_of(me)] < round -> goto out
#ifndef FAULT_NO_LOOK_AT_ABOVE
            :: dead[parent_of(me)] && down_flag[parent_of(me)] < round ->
                name(parent_of(me));
                goto out
#endif
#ifndef FAULT_NO_LOOK_AT_CALL
            :: clock[parent_of(me)] >= round && called[parent_of(me)] != round ->
                if
                :: down_flag[parent_of(me)] >= round -> skip
                :: else -> name(parent_of(me)); goto out
                fi
#endif
            fi;
            data = down_data[parent_of(me)]
        fi;
        assert(data == all_of(round));
        may_die();
#ifdef FAULT_DATA_AFTER_RELEASE
        down_flag[me] = round;
        down_data[me] = data;
#else
        down_data[me] = data;
        down_flag[me] = round;
#endif
        /* No rank goes on before all have come. */
        child = 0;
        do
        :: child < RANKS -> assert(came[child] >= round); child++
        :: else -> break
        od;
        data = 0;
        child = NONE;
        round++
    od;
out:
#ifdef DEATH
    /* A rank that fails names the one that died. */
    assert(round > ROUNDS || broken == NONE || broken == victim);
#endif
    skip;
gone:
    ended++
}

init {
    atomic {
        byte each = 0;
        do
        :: each < RANKS -> run rank(each); each++
        :: else -> break
        od;
        each = 0
    }
    ended == RANKS
}

#ifdef EVENTUALLY
ltl all_end { <> (ended == RANKS) }
#endif
