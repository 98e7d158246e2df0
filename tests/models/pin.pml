/* Pins of a published arena: no reader ever has other bytes than those it pinned.
 *
 * code   libfabricshm/shm/pin_page.cpp: pin page mark
 * code   libfabricshm/shm/pin_page.hpp: unpin
 *
 * A maker replaces the bytes of one line, READERS readers pin it, read it and let it
 * go, ROUNDS times each. All but the first reader subscribe at any time: the daemon makes their page,
 * raises the number that the maker can read, and then answers. Each reader and the maker have a store
 * buffer, as x86 has: a store is seen by others some time after it was made, and the processor's own
 * later loads may come before that; an exchange or a fence empties it. With DEATH a reader may be
 * killed at any point, after which the daemon drops its page; with RESTART the maker may be killed,
 * and its successor begins with the word as it finds it and with no page.
 *
 * The maker makes TRIES attempts. FAULT_DROPPED_WHILE_ALIVE is a daemon that takes a process for gone
 * because its connection is.
 *
 * Holds: what a reader reads between its pin and its unpin belongs to the generation that it pinned.
 *
 * holds  two readers:                     -DREADERS=2 -DROUNDS=1
 * holds  one reader, again and again:     -DROUNDS=2
 * holds  a reader may be killed:          -DREADERS=2 -DROUNDS=1 -DDEATH
 * holds  the maker may be killed:         -DREADERS=2 -DROUNDS=1 -DRESTART -DTRIES=2
 * holds  two threads of one reader:       -DREADERS=2 -DROUNDS=1 -DONE_PAGE
 *
 * finds  assertion violated: -DFAULT_READER_NO_FENCE
 * finds  assertion violated: -DFAULT_MAKER_NO_FENCE
 * finds  assertion violated: -DFAULT_NOT_READ_AGAIN
 * finds  assertion violated: -DFAULT_PINNED_IS_REPLACED
 * finds  assertion violated: -DFAULT_SCANS_FIRST
 * finds  assertion violated: -DFAULT_UNPINNED_EARLY
 * finds  assertion violated: -DREADERS=2 -DROUNDS=1 -DFAULT_PAGES_LEARNT_FIRST
 * finds  assertion violated: -DREADERS=2 -DROUNDS=1 -DFAULT_ANSWERED_FIRST
 * finds  assertion violated: -DREADERS=2 -DROUNDS=1 -DONE_PAGE -DFAULT_HIGH_RAISED_LAST
 * finds  assertion violated: -DDEATH -DFAULT_DROPPED_WHILE_ALIVE
 * finds  assertion violated: -DRESTART -DFAULT_BYTES_BEFORE_WORD
 * finds  assertion violated: -DRESTART -DFAULT_SUCCESSOR_LEARNS_NOTHING
 */

#ifndef READERS
#define READERS 1
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef TRIES
#define TRIES 3
#endif

#define EMPTY 0
#define READY 1
#define LEAVING 2
#define WORD(generation, state) ((generation) * 4 + (state))
#define STATE(word) ((word) % 4)
#define GENERATION(word) ((word) / 4)
#define GARBAGE 99

/* As memory, and so all others have them. */
byte word = WORD(1, READY);
byte bytes = 1;         /* the generation that is in the line's bytes */
byte slot[READERS];     /* 1: the line */
byte high[READERS];     /* 1: the slot may be in use */
byte newest = 1;        /* the number of the newest page */
bool answered[READERS]; /* the reader has its page */
bool dropped[READERS];  /* the daemon says that the page is over */
bool known[READERS];    /* to the maker */
bool gone[READERS];     /* its process has ended */

/* The store buffers, oldest first: what (0 slot, 1 high; 0 word, 1 bytes), and the value. */
chan of_reader[READERS] = [3] of { byte, byte };
chan of_maker = [3] of { byte, byte };

#ifdef ONE_PAGE
#define HIGH_OF(me) high[0] /* two threads share a page: 1 and 2 slots of it are in use */
#define SEEN_BY_SCAN(reader) (high[0] > reader)
#define RAISED(me) (me + 1)
#define PAGE_OF(reader) 0
#else
#define HIGH_OF(me) high[me]
#define SEEN_BY_SCAN(reader) (high[reader] != 0)
#define RAISED(me) 1
#define PAGE_OF(reader) reader
#endif

inline settle_reader(me, what, value) {
    if
    :: what == 0 -> slot[me] = value
    :: else -> if :: HIGH_OF(me) < value -> HIGH_OF(me) = value :: else -> skip fi
    fi
}

inline drain_reader(me) {
    atomic {
        do
        :: nempty(of_reader[me]) -> of_reader[me] ? what, value; settle_reader(me, what, value)
        :: empty(of_reader[me]) -> break
        od
    }
}

inline settle_maker(what, value) {
    if
    :: what == 0 -> word = value
    :: else -> bytes = value
    fi
}

inline drain_maker() {
    atomic {
        do
        :: nempty(of_maker) -> of_maker ? what, value; settle_maker(what, value)
        :: empty(of_maker) -> break
        od
    }
}

/* The hardware empties the buffers when it likes. */
active proctype buffers() {
    byte what, value;
end:
    do
    :: atomic { nempty(of_maker) -> of_maker ? what, value; settle_maker(what, value); what = 0; value = 0 }
    :: atomic { nempty(of_reader[0]) -> of_reader[0] ? what, value; settle_reader(0, what, value); what = 0; value = 0 }
#if READERS > 1
    :: atomic { nempty(of_reader[1]) -> of_reader[1] ? what, value; settle_reader(1, what, value); what = 0; value = 0 }
#endif
    od
}

proctype reader(byte me) {
    byte what, value;
    byte seen = 0;
    byte round = 0;
    answered[me]; /* PublishedArena::subscribe */
    do
    :: round == ROUNDS -> break
    :: round < ROUNDS ->
        seen = word;
        if
        :: STATE(seen) != READY -> goto next
        :: else -> skip
        fi;
#ifndef FAULT_HIGH_RAISED_LAST
        /* A locked instruction: nothing of it stays in the buffer. */
        atomic { drain_reader(me); settle_reader(me, 1, RAISED(me)) };
#endif
        of_reader[me] ! 0, 1;
#ifndef FAULT_READER_NO_FENCE
        drain_reader(me);
#endif
#ifdef FAULT_NOT_READ_AGAIN
        skip;
#else
        if
        :: word != seen -> of_reader[me] ! 0, 0; goto next
        :: else -> skip
        fi;
#endif
#ifdef FAULT_HIGH_RAISED_LAST
        atomic { drain_reader(me); settle_reader(me, 1, RAISED(me)) };
#endif
#ifdef FAULT_UNPINNED_EARLY
        of_reader[me] ! 0, 0;
        assert(bytes == GENERATION(seen));
#else
        assert(bytes == GENERATION(seen));
#ifdef DEATH
        if
        :: goto killed /* with its pin in the page */
        :: skip
        fi;
#endif
        assert(bytes == GENERATION(seen));
        of_reader[me] ! 0, 0; /* release: behind the loads of the bytes */
#endif
next:
        seen = 0;
        round++
    od;
killed:
    drain_reader(me);
    atomic { gone[me] = true; seen = 0; round = 0 }
}

#ifdef DEATH
/* The daemon drops the page of a process that has ended. A killed reader may leave its pin behind. */
active proctype undertaker() {
end:
    do
#ifdef FAULT_DROPPED_WHILE_ALIVE
    :: atomic { answered[0] && !dropped[0] -> dropped[0] = true }
#else
    :: atomic { gone[0] && !dropped[0] -> dropped[0] = true }
#endif
    od
}
#endif

#if READERS > 1
/* The daemon serves a subscription. */
active proctype daemon() {
#ifdef FAULT_ANSWERED_FIRST
    answered[1] = true;
    newest = 2
#else
    newest = 2;
    answered[1] = true
#endif
}
#endif

inline learn() {
    if
    :: newest >= 1 && !known[0] -> known[0] = true
    :: else -> skip
    fi;
#if READERS > 1
    if
    :: newest >= 2 && !known[1] -> known[1] = true
    :: else -> skip
    fi
#endif
}

#define HOLDS(reader) (known[PAGE_OF(reader)] && !dropped[PAGE_OF(reader)] && SEEN_BY_SCAN(reader) && slot[reader] == 1)

inline scan() {
    pinned = false;
    if
    :: HOLDS(0) -> pinned = true
    :: else -> skip
    fi;
#if READERS > 1
    if
    :: HOLDS(1) -> pinned = true
    :: else -> skip
    fi
#endif
}

#ifdef RESTART
#define MAY_BE_KILLED if :: lives > 0 -> lives--; goto killed :: skip fi
#else
#define MAY_BE_KILLED skip
#endif

active proctype maker() {
    byte what, value;
    bool pinned = false;
    byte generation = 1;
    byte tries = 0;
    byte lives = 1;
    bool successor = false;
again:
    do
    :: tries == TRIES -> break
    :: tries < TRIES ->
        tries++;
#ifdef FAULT_PAGES_LEARNT_FIRST
        learn();
#endif
#ifdef FAULT_SCANS_FIRST
        learn();
        scan();
        of_maker ! 0, WORD(generation, LEAVING);
        drain_maker();
#else
        of_maker ! 0, WORD(generation, LEAVING);
#ifndef FAULT_MAKER_NO_FENCE
        drain_maker(); /* PinScan::PinScan */
#endif
        MAY_BE_KILLED;
#ifndef FAULT_PAGES_LEARNT_FIRST
#ifdef FAULT_SUCCESSOR_LEARNS_NOTHING
        if
        :: !successor -> learn()
        :: else -> skip
        fi;
#else
        learn(); /* PublishedArena::sync_pages */
#endif
#endif
        scan();
#endif
#ifdef FAULT_PINNED_IS_REPLACED
        pinned = false;
#endif
        if
        :: pinned -> of_maker ! 0, WORD(generation, READY)
        :: else ->
#ifdef FAULT_BYTES_BEFORE_WORD
            of_maker ! 1, GARBAGE;
            MAY_BE_KILLED;
#endif
            of_maker ! 0, WORD(generation + 1, EMPTY);
            MAY_BE_KILLED;
            of_maker ! 1, GARBAGE;
            MAY_BE_KILLED;
            generation++;
            of_maker ! 1, generation;
            of_maker ! 0, WORD(generation, READY)
        fi;
        pinned = false
    od;
    goto over;
killed:
    /* What it stored is stored: a killed process leaves its buffer to memory. The successor takes a
     * line that was leaving back, since its bytes are as they were, and fills an empty one. */
    drain_maker();
    atomic {
        known[0] = false;
#if READERS > 1
        known[1] = false;
#endif
        generation = GENERATION(word);
        successor = true
    };
    if
    :: STATE(word) == LEAVING -> of_maker ! 0, WORD(generation, READY)
    :: STATE(word) == EMPTY ->
        of_maker ! 1, GARBAGE;
        of_maker ! 1, generation;
        of_maker ! 0, WORD(generation, READY)
    :: else -> skip
    fi;
    goto again;
over:
    drain_maker()
}

init {
    atomic {
        byte each = 0;
        answered[0] = true;
#ifdef ONE_PAGE
        answered[1] = true;
#endif
        do
        :: each < READERS -> run reader(each); each++
        :: else -> break
        od;
        each = 0
    }
}
