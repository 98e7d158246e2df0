// For tests of hardware that is not everywhere.

#pragma once

namespace test_support {

/// Marks this program as skipped (exit code 77) unless something fails. `reason` says what this
/// machine lacks; it is not copied.
void skip(const char* reason);

}  // namespace test_support
