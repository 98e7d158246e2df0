// Waits that must not hold Python's lock.

#pragma once

#include <Python.h>

namespace fabricshm::torch_backend {

/// Lets go of the interpreter's lock, where this thread has it: what is waited for may run Python
/// callbacks on another thread.
class WithoutInterpreterLock {
  public:
    WithoutInterpreterLock() {
        if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) state_ = PyEval_SaveThread();
    }
    ~WithoutInterpreterLock() {
        if (state_ != nullptr) PyEval_RestoreThread(state_);
    }
    WithoutInterpreterLock(const WithoutInterpreterLock&) = delete;
    WithoutInterpreterLock& operator=(const WithoutInterpreterLock&) = delete;

  private:
    PyThreadState* state_ = nullptr;
};

}  // namespace fabricshm::torch_backend
