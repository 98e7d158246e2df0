#include "libfabricshm/torch/ending.hpp"

#include <fabricshm/cuda.h>

#include <exception>
#include <stdexcept>
#include <string>

#include "libfabricshm/torch/interpreter_lock.hpp"

namespace fabricshm::torch_backend {

void Ending::check(const char* title) const {
    if (!aborted_ && !shut_down_) return;
    if (!aborted_ && thread_in_callback()) return;
    const std::string name = title;
    const char* const why = aborted_ ? kAbortedGroup : kShutDownGroup;
    throw std::runtime_error("fabricshm: cannot " + name.substr(name.find(':') + 1) + ": " + why);
}

void Ending::end(const char* why) {
    communicator_->abort(why);
    executor_->abandon(std::make_exception_ptr(
        std::runtime_error(std::string("fabricshm: cannot run the operation: ") + why)));
}

void Ending::abort(const LaneOf& lane) {
    if (communicator_->is_of_parent() || aborted_.exchange(true)) return;
    const WithoutInterpreterLock released;
    end(kAbortedGroup);
    // After that: a thread that joins the ranks on their devices has the lock of lane().
    if (const auto found = lane()) fabricshm_cuda_abort(found->group());
}

void Ending::shutdown(std::chrono::milliseconds limit, const LaneOf& take_lane) {
    if (communicator_->is_of_parent() || shut_down_.exchange(true)) return;
    const WithoutInterpreterLock released;
    if (thread_in_callback()) return;
    const auto deadline = std::chrono::steady_clock::now() + limit;
    const auto& outstanding = communicator_->outstanding();
    const bool in_time = executor_->drain(deadline) && outstanding->wait_for_none(deadline);
    if (!in_time) end(kLateGroup);
    executor_->shut_down();
    take_lane().reset();  // waits for its stream, or ends what is there
    outstanding->end(kShutDownGroup);
    communicator_->leave();
    if (in_time || aborted_) return;
    throw std::runtime_error(
        "fabricshm: cannot shut down the process group: timeout passed: what was outstanding had "
        "not ended within " +
        std::to_string(limit.count()) + " ms, and has failed");
}

}  // namespace fabricshm::torch_backend
