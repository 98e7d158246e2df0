// WriteWorker: the writer of one silo on a thread of its own.

#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "fabricd/data/data_spec.hpp"
#include "fabricd/data/silo/silo_writer.hpp"

namespace fabricd {

/// Any thread, but the constructor's and destructor's are one. Results are called on the worker's
/// thread; they hand over to another and return.
class WriteWorker {
  public:
    struct Options {
        std::vector<WriteName> to_clear;  // first of all
        std::function<void(const WriteName&, const Error&, const std::string& reason)> on_cleared;
        std::function<void(Written)> on_done;
    };

    /// Errors as open_silo_writer().
    static Result<std::unique_ptr<WriteWorker>> start(const SiloSpec& spec, Options options);
    /// What has not begun ends without a result. Waits for what a disk is doing.
    ~WriteWorker();
    WriteWorker(const WriteWorker&) = delete;
    WriteWorker& operator=(const WriteWorker&) = delete;

    /// As SiloWriter; they wait here until it has room.
    void begin(std::uint64_t file, const WriteName& name, std::uint64_t tag);
    void append(std::uint64_t file, const std::byte* bytes, Bytes count, std::uint64_t tag);
    void commit(std::uint64_t file, std::uint64_t tag);
    void abort(std::uint64_t file, std::uint64_t tag);

  private:
    struct Step {
        std::function<void(SiloWriter&)> run;
        bool needs_room = false;
    };

    WriteWorker(std::unique_ptr<SiloWriter> writer, Options options);
    void add(Step step);
    void work();
    void clear();
    bool start_next(std::unique_lock<std::mutex>& lock);

    Options options_;
    std::unique_ptr<SiloWriter> writer_;  // of the thread

    std::mutex mutex_;
    std::condition_variable has_step_;
    std::deque<Step> steps_;
    std::size_t under_way_ = 0;
    bool ends_ = false;
    std::thread thread_;
};

}  // namespace fabricd
