// Mock driver: streams that work by themselves, with HostState::own_time.

#pragma once

#include <functional>

#include "tests/support/mock_gpu/driver.hpp"

namespace mock_gpu {

/// Puts work on a stream: done by the stream's own thread after all that was put there before. Null
/// is a stream as the others are: none waits for it.
void put_on_stream(Handle stream, std::function<void()> work);

/// Whether it has nothing to do.
bool is_stream_done(Handle stream);

/// Waits for that.
void wait_for_stream(Handle stream);
/// For that of all streams.
void wait_for_all_streams();

}  // namespace mock_gpu
