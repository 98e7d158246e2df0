/* A shard moves while its owner writes it and others read it, and the daemon that moves it is killed.
 *
 * code   libfabricshm/shm/shard_header.cpp: try_pin unpin_shard begin_write publish_shard
 * code   libfabricshm/shm/shard_header.cpp: swap_places is_pinned retire_shard
 * code   fabricd/server/shard_copier.cpp: ShardCopier::await_owner ShardCopier::move_piece
 * code   fabricd/pool/moves.cpp: Moves::begin Moves::copied
 * code   fabricd/pool/shards.cpp: Shards::sweep Shards::is_read Shards::drop_copy
 * code   fabricd/pool/shards_restore.cpp: Shards::settle
 *
 * A copy has two halves, which are read and written one after the other; FREED is what is in bytes that
 * others may have. All words are sequentially consistent here, as they are in the code where it counts.
 * The daemon may be killed between any two steps; the next one knows which copies were granted (the
 * journal) and reads the word.
 *
 * Holds: no session reads bytes that are free; what a read calls valid is one version, whole, and at
 * least as new as what was published when it began; in the end there is one copy, and it is the last
 * version.
 *
 * holds  one reader, two moves, two writes:     -DREADERS=1 -DMOVES=2 -DWRITES=2
 * holds  two readers, two moves, a write:       -DREADERS=2 -DREADS=1 -DMOVES=2 -DWRITES=1
 * holds  a daemon that is killed twice:         -DREADERS=1 -DMOVES=2 -DWRITES=1 -DCRASHES=2
 * holds  a reader that dies, a daemon, too:     -DREADERS=2 -DREADS=1 -DMOVES=1 -DWRITES=1 -DCRASHES=1 -DDEATHS=1
 *
 * finds  assertion violated: -DFAULT_NO_SECOND_LOOK
 * finds  assertion violated: -DFAULT_FREED_AT_ONCE
 * finds  assertion violated: -DFAULT_SWAPS_BLINDLY
 * finds  assertion violated: -DFAULT_NO_LOOK_AT_THE_END
 * finds  assertion violated: -DCRASHES=1 -DFAULT_BOOKS_DECIDE
 * finds  assertion violated: -DCRASHES=1 -DFAULT_NEW_COPY_FORGOTTEN
 */

#ifndef READERS
#define READERS 1
#endif
#ifndef READS
#define READS 2
#endif
#ifndef MOVES
#define MOVES 2
#endif
#ifndef WRITES
#define WRITES 2
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef DEATHS
#define DEATHS 0
#endif

#define FREED 99
#define PIN(reader, place) pins[(reader) * 2 + (place)]

byte low[2];         /* the halves of the copies: a version, or FREED */
byte high[2];
byte pins[READERS * 2];
bool dead[READERS];

/* The word. A compare-and-swap is one atomic step over all three. */
bool writing = false;
byte moves = 0;
byte version = 0;

/* What the journal knows. */
bool granted[2];
byte recorded = 0;   /* the valid place, as far as the daemon's records go */

byte crashes = CRASHES;
byte deaths = DEATHS;
byte moved = 0;
bool owner_done = false;

proctype Owner() {
    byte place;
    byte round = 0;
    do
    :: round < WRITES ->
        atomic { !writing -> writing = true; place = moves % 2 }
        low[place] = version + 1;
        high[place] = version + 1;
        atomic { version = version + 1; writing = false }
        round++
    :: else -> break
    od;
    owner_done = true
}

proctype Reader(byte me) {
    byte round = 0;
    byte place, seen_moves, seen_version, least, a, b;
    bool valid;
    do
    :: round < READS ->
        least = version;
again:
        atomic { !writing -> place = moves % 2; seen_moves = moves }
        PIN(me, place)++;
#ifndef FAULT_NO_SECOND_LOOK
        if
        :: atomic { moves == seen_moves && !writing -> seen_version = version }
        :: else -> PIN(me, place)--; goto again
        fi;
#else
        seen_version = version;
#endif
        if
        :: atomic { deaths > 0 -> deaths--; dead[me] = true }
           goto gone
        :: true
        fi;
        a = low[place];
        b = high[place];
        /* Even what is going to be called invalid is not another owner's. */
        assert(a != FREED && b != FREED);
#ifndef FAULT_NO_LOOK_AT_THE_END
        atomic { valid = (version == seen_version && !writing) }
#else
        valid = true;
#endif
        PIN(me, place)--;
        assert(!valid || (a == seen_version && b == seen_version && seen_version >= least));
        round++
    :: else -> break
    od;
gone:
    skip
}

/* Waits until no living reader has a pin, and gives the bytes away. */
inline free_copy(which) {
#ifndef FAULT_FREED_AT_ONCE
    for (i : 0 .. READERS - 1) {
        (PIN(i, which) == 0 || dead[i])
    }
#endif
    atomic { low[which] = FREED; high[which] = FREED; granted[which] = false }
}

/* The daemon may be killed here. */
#define KILLED if :: atomic { crashes > 0 -> crashes--; goto restart } :: true fi

proctype Daemon() {
    byte i, from, to, seen_moves, seen_version;
    do
    :: moved < MOVES ->
        atomic { from = recorded; to = 1 - from; assert(granted[from] && !granted[to]) }
        atomic { granted[to] = true; low[to] = 0; high[to] = 0 }
        KILLED;
copy:
        atomic { !writing -> seen_moves = moves; seen_version = version }
        low[to] = low[from];
        KILLED;
        high[to] = high[from];
        KILLED;
#ifndef FAULT_SWAPS_BLINDLY
        if
        :: atomic { moves == seen_moves && version == seen_version && !writing -> moves++ }
        :: else -> goto copy
        fi;
#else
        moves++;
#endif
        KILLED;
        recorded = to;
        KILLED;
        free_copy(from);
        moved++
    :: else -> break
    od;
    goto done;
restart:
    /* Which of the two counts is in the word; the records may be a step behind. */
#ifndef FAULT_BOOKS_DECIDE
    recorded = moves % 2;
#endif
#ifndef FAULT_NEW_COPY_FORGOTTEN
    if
    :: granted[1 - recorded] -> free_copy(1 - recorded)
    :: else
    fi;
#endif
    moved++;
    from = recorded;
    to = 1 - from;
    if
    :: moved < MOVES ->
        atomic { assert(granted[from] && !granted[to]); granted[to] = true; low[to] = 0; high[to] = 0 }
        KILLED;
        goto copy
    :: else
    fi;
done:
    owner_done;
    assert(granted[moves % 2] && !granted[1 - moves % 2]);
    assert(low[moves % 2] == version && high[moves % 2] == version)
}

init {
    byte i;
    atomic {
        granted[0] = true;
        low[1] = FREED;
        high[1] = FREED;
        run Owner();
        run Daemon();
        for (i : 0 .. READERS - 1) {
            run Reader(i)
        }
    }
}
