// Named places where a plan can kill, stop or slow the process: FAULT_POINT("allreduce.arrived").
// FABRIC_FAULT arms them. It has entries separated by ';', each
//
//     [target@]name[:action[:count[:argument]]]
//
//   target    rank=N, device=NAME, host=NAME or daemon; without it: every process that reads this
//   action    kill (default), stop, exit, slow, poison, host (all of its process group: daemon and
//             ranks of a host die together)
//   count     the passage at which it fires, 1 is the first; slow: and at every later one
//   argument  slow: microseconds of each passage; poison: byte of the first arena that is lost
//
// A rank is named by $RANK (or what mpirun and srun set), a device by $FABRIC_DEVICE, a host by
// $FABRIC_HOST, the daemon by its program's name. What fires is noted in the file that
// $FABRIC_FAULT_REPORT names: "pid action name". Unarmed, a point costs one load of a plain bool.

#pragma once

namespace fabricshm::fault {

/// True when a point is armed. Plain: it is set at start-up, or by arm() before there are threads.
extern bool g_armed;

/// What the action `poison` does with its argument; set by the code that has memory to lose.
/// nullptr: nothing.
extern void (*g_poison)(long argument);

/// Arms points as FABRIC_FAULT would; nullptr or "" disarms. For tests that fork their victims.
void arm(const char* text);

/// Fires if `name` is an armed point and its count has come.
void pass(const char* name) noexcept;

}  // namespace fabricshm::fault

#define FAULT_POINT(name)                                                                         \
    do {                                                                                          \
        if (__builtin_expect(::fabricshm::fault::g_armed, false)) ::fabricshm::fault::pass(name); \
    } while (false)
