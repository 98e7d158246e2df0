// A started operation, as Python sees it.

#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "libfabricshm/python/handles.hpp"

namespace fabricshm::python {

/// Used by one Python thread at a time.
/// Holds the arrays: the library reads and writes them until the end, whatever Python does with its
/// own references.
class Request {
  public:
    Request(std::shared_ptr<GroupHandle> group, fabricshm_request* request, bool receives,
            pybind11::object input, pybind11::object output);
    /// A request dropped before its end goes on; its arrays are kept until then.
    ~Request();
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;

    /// Whether it is complete. Raises its error when it is.
    bool test();
    /// Waits for it; raises its error. Nothing to do when it was waited for before.
    /// Gives up the interpreter's lock while it waits.
    void wait();
    /// The rank that sent what was received; -1 for other operations.
    int peer();

    /// Frees the arrays of dropped requests that have ended since. With the interpreter's lock.
    static void drop_finished();

  private:
    struct Dropped;

    std::shared_ptr<GroupHandle> group_;
    fabricshm_request* request_;  // null once waited for
    bool receives_;
    pybind11::object input_;
    pybind11::object output_;
    int peer_ = -1;
};

}  // namespace fabricshm::python
