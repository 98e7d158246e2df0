// Processes for tests: what they do is a function of the test, what they observed is their exit
// code.

#pragma once

#include <sys/types.h>

#include <functional>
#include <vector>

namespace test_support {

/// Runs `body` in a forked process, which ends with what it returns (0: fine). Fork before this
/// process has threads, or the child may find a lock taken. Killed when it goes out of scope.
class Child {
  public:
    explicit Child(const std::function<int()>& body);
    ~Child();
    Child(Child&& other) noexcept;
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;

    pid_t pid() const noexcept { return pid_; }
    /// SIGKILL, unless it has ended already; returns when it is gone.
    void kill();
    /// Its exit code, 128 + signal when it was killed, -1 when it did not end within 60 s.
    int wait();

  private:
    pid_t pid_ = -1;
};

/// Runs `body(rank)` in `count` processes at the same time and returns their exit codes by rank.
std::vector<int> run_children(int count, const std::function<int(int rank)>& body);

/// One process opens it, others wait for it: a step of a story, in memory that all children made
/// afterwards share.
class Gate {
  public:
    Gate();
    ~Gate();
    Gate(const Gate&) = delete;
    Gate& operator=(const Gate&) = delete;

    /// Adds one; wakes the waiters.
    void open();
    /// Waits until it was opened `count` times; false after 60 s.
    bool wait(int count = 1) const;

  private:
    void* memory_;
};

}  // namespace test_support
