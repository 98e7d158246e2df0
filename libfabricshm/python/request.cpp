#include "libfabricshm/python/request.hpp"

#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "libfabricshm/python/errors.hpp"

namespace py = pybind11;

namespace fabricshm::python {

// The library's progress thread reports the end, and may not wait for the interpreter's lock. So
// it puts what Python has to free on a list, and the next call from Python frees it.
struct Request::Dropped {
    std::shared_ptr<GroupHandle> group;
    fabricshm_request* request;
    py::object input;
    py::object output;

    struct List {
        std::mutex mutex;
        std::vector<Dropped*> ended;
    };
    static List& list() {
        static auto* const instance = new List;  // outlives the interpreter
        return *instance;
    }

    // On the library's progress thread, or at once when the operation is over. Then
    // fabricshm_wait() returns without waiting, and frees the request.
    static void on_end(void* context, int) {
        auto* self = static_cast<Dropped*>(context);
        fabricshm_wait(self->request);
        std::lock_guard lock(list().mutex);
        list().ended.push_back(self);
    }
};

namespace {

struct End {
    std::mutex mutex;
    std::condition_variable reported;
    bool done = false;

    static void report(void* context, int) {
        auto* self = static_cast<End*>(context);
        std::lock_guard lock(self->mutex);
        self->done = true;
        self->reported.notify_one();
    }
};

// The peer is known from the completion until fabricshm_wait() frees the request.
int wait_for_peer(fabricshm_request* request) {
    End end;
    if (fabricshm_on_complete(request, &End::report, &end) != FABRICSHM_OK) return -1;
    std::unique_lock lock(end.mutex);
    end.reported.wait(lock, [&end] { return end.done; });
    return fabricshm_request_peer(request);
}

}  // namespace

Request::Request(std::shared_ptr<GroupHandle> group, fabricshm_request* request, bool receives,
                 py::object input, py::object output)
    : group_(std::move(group)),
      request_(request),
      receives_(receives),
      input_(std::move(input)),
      output_(std::move(output)) {}

Request::~Request() {
    // After a fork it is the parent's, and so is its end.
    if (request_ == nullptr || !group_->mine()) return;
    // The operation still reads and writes the arrays, and a destructor may not wait for it: they
    // go along, and are freed by the next start() after its end.
    auto* dropped = new Dropped{std::move(group_), request_, std::move(input_), std::move(output_)};
    fabricshm_on_complete(dropped->request, &Dropped::on_end, dropped);
}

void Request::drop_finished() {
    std::vector<Dropped*> ended;
    {
        std::lock_guard lock(Dropped::list().mutex);
        ended.swap(Dropped::list().ended);
    }
    // Outside of the mutex: freeing an array may run any Python code.
    for (Dropped* dropped : ended) delete dropped;
}

bool Request::test() {
    if (request_ == nullptr) return true;
    // A negative state is an error, which wait() raises.
    const int state = fabricshm_test(request_);
    if (state == 0) return false;
    // Over: frees it, and raises what went wrong.
    wait();
    return true;
}

void Request::wait() {
    if (request_ == nullptr) return;
    // First of all: should this raise, a second wait() has nothing to do, as the header says.
    fabricshm_request* const request = std::exchange(request_, nullptr);
    const int result = without_lock([&] {
        if (receives_) peer_ = wait_for_peer(request);
        return fabricshm_wait(request);
    });
    // The arrays are the caller's again, whether it went well or not.
    input_ = py::none();
    output_ = py::none();
    check(result);
}

int Request::peer() {
    return peer_;
}

}  // namespace fabricshm::python
