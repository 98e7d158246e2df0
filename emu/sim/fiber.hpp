// Fiber: a function that waits in the middle and goes on later, on a stack of its own. So code that
// calls and waits for answers runs in simulated time as it is.

#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>

namespace emu {

/// For one thread, in which resume() is called by no other fiber. Its function has to end before
/// the fiber does: a stack that is thrown away runs no destructors.
class Fiber {
  public:
    explicit Fiber(std::function<void()> body);
    ~Fiber();
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;

    /// Runs it until it waits or ends. Not after its end.
    void resume();
    bool has_ended() const noexcept { return has_ended_; }

    /// Of the fiber that runs: back to resume(), until it is called again.
    static void wait();

  private:
    static void enter();
    void leave();

    std::function<void()> body_;
    std::byte* stack_ = nullptr;
    ucontext_t own_{};
    ucontext_t caller_{};
    bool has_ended_ = false;

    // What the sanitizers have to know of a stack; unused without them.
    void* own_shadow_ = nullptr;
    const void* caller_stack_ = nullptr;
    std::size_t caller_stack_bytes_ = 0;
    void* caller_shadow_ = nullptr;
};

}  // namespace emu
