#include "emu/sim/fiber.hpp"

#include <sys/mman.h>

#include "libfabricshm/base/check.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace emu {

namespace {

// Enough for a log line of 1 KiB and for what formats it, with the sanitizers' larger frames. Only
// pages that are touched are committed.
constexpr std::size_t kStackBytes = 256 * 1024;

thread_local Fiber* running = nullptr;

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)) {
    void* stack = ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    FABRIC_CHECK(stack != MAP_FAILED);
    stack_ = static_cast<std::byte*>(stack);
    FABRIC_CHECK(::getcontext(&own_) == 0);
    own_.uc_stack.ss_sp = stack_;
    own_.uc_stack.ss_size = kStackBytes;
    own_.uc_link = nullptr;
    ::makecontext(&own_, enter, 0);
#if defined(__SANITIZE_THREAD__)
    own_shadow_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
    FABRIC_CHECK(has_ended_);
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(own_shadow_);
#endif
    ::munmap(stack_, kStackBytes);
}

void Fiber::resume() {
    FABRIC_CHECK(running == nullptr && !has_ended_);
    running = this;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&caller_shadow_, stack_, kStackBytes);
#endif
#if defined(__SANITIZE_THREAD__)
    caller_shadow_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(own_shadow_, 0);
#endif
    FABRIC_CHECK(::swapcontext(&caller_, &own_) == 0);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(caller_shadow_, nullptr, nullptr);
#endif
    running = nullptr;
}

void Fiber::leave() {
#if defined(__SANITIZE_ADDRESS__)
    // nullptr at the end: its shadow stack is given up.
    __sanitizer_start_switch_fiber(has_ended_ ? nullptr : &own_shadow_, caller_stack_,
                                   caller_stack_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(caller_shadow_, 0);
#endif
    FABRIC_CHECK(::swapcontext(&own_, &caller_) == 0);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(own_shadow_, &caller_stack_, &caller_stack_bytes_);
#endif
}

void Fiber::wait() {
    FABRIC_CHECK(running != nullptr);
    running->leave();
}

void Fiber::enter() {
    Fiber& self = *running;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &self.caller_stack_, &self.caller_stack_bytes_);
#endif
    self.body_();
    self.has_ended_ = true;
    self.leave();
}

}  // namespace emu
