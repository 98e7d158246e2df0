// Named places where a test can kill, stop or delay the process: FAULT_POINT("allreduce.arrived").
// FABRIC_FAULT="name[:action[:count]]" arms one; action is kill (default), stop or exit; count says
// at which passage it fires (1 is the first). Unarmed, a point costs one load of a plain bool.

#pragma once

namespace fabricshm::fault {

/// True when a point is armed. Plain: it is set at start-up, or by arm() before there are threads.
extern bool g_armed;

/// Arms a point as FABRIC_FAULT would; nullptr or "" disarms. For tests that fork their victims.
void arm(const char* text);

/// Fires if `name` is the armed point and its count has come.
void pass(const char* name) noexcept;

}  // namespace fabricshm::fault

#define FAULT_POINT(name)                                                                         \
    do {                                                                                          \
        if (__builtin_expect(::fabricshm::fault::g_armed, false)) ::fabricshm::fault::pass(name); \
    } while (false)
