// Controller: the loop on a thread of its own: takes samples, keeps the journal, hands decisions to
// actuators. The only part of fabricd/control/ that has a clock. docs/concurrency.md.

#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "fabricd/control/journal/decision_journal.hpp"
#include "fabricd/control/loop/loop.hpp"
#include "libfabricshm/base/result.hpp"

namespace fabricd {

/// What carries decisions out; called on the controller's thread, one call at a time. One that can
/// do only some of it leaves the rest as it is here: refused, which the journal then says.
class Actuators {
  public:
    virtual ~Actuators() = default;
    /// To all sessions of the job, or to none that matters: a session that is gone is no failure.
    virtual fabricshm::Result<void> direct(const Directive& directive);
    /// Begins it; the windows say what came of it. `node` by the name that the window gives it.
    virtual fabricshm::Result<void> move_shard(const std::string& shard, const std::string& node);
    /// All quotas, of vGPUs, of the pool and of caches, or none. No quota gets what others have
    /// not given: kBusy when another change came between the decision and this call; the error's
    /// step says how.
    virtual fabricshm::Result<void> shift_quotas(const Quota& action);
    virtual fabricshm::Result<void> shift_pool_quotas(const PoolQuota& action);
    virtual fabricshm::Result<void> shift_cache_quotas(const CacheQuota& action);
    virtual fabricshm::Result<void> set_compute_share(const std::string& user, unsigned percent);
};

struct ControllerParts {
    /// Shows the newest sample to its argument, once per window, on the controller's thread.
    std::function<void(const std::function<void(const Sample&)>&)> look;
    /// Adds what a sample does not have: quotas, shards. May be empty.
    std::function<void(Window&)> complete;
    Actuators* actuators = nullptr;  // outlives the controller
    std::string journal_path;        // "": no journal
    std::string settings;            // the journal's: lines of key=value
};

/// start(), stop() and the destructor are for one thread; decisions() and counters() for any.
class Controller {
  public:
    /// Reads the journal of the daemon before: ids go on, and its decisions can be asked for. A
    /// file of it that cannot be read is renamed and logged: watching is more important.
    Controller(ControlConfig config, ControllerParts parts);
    ~Controller();
    Controller(const Controller&) = delete;
    Controller& operator=(const Controller&) = delete;

    void start();
    /// Ends the thread, after the window that it is at. Idempotent.
    void stop();

    /// One window. For the thread, and for tests in its place.
    void step();

    /// The newest `last` decisions, oldest first; all that are known for 0.
    std::vector<Decision> decisions(std::size_t last) const;
    std::optional<Decision> decision(std::uint64_t id) const;
    LoopCounters counters() const;

  private:
    void run();
    void open_journal();
    template <typename Record>
    void write(const Record& record);
    std::optional<DecisionOutcome> act(const Decision& decision, const TickResult& result,
                                       const Window& window);
    fabricshm::Result<void> act_on_host(const Decision& decision, const Window& window);
    fabricshm::Result<void> carry_out(const Placement& action, const Decision& decision,
                                      const Window& window);
    fabricshm::Result<void> carry_out(const ComputeShare& action, const Decision& decision,
                                      const Window& window);
    fabricshm::Result<void> carry_out(const Quota& action, const Decision& decision,
                                      const Window& window);
    fabricshm::Result<void> carry_out(const PoolQuota& action, const Decision& decision,
                                      const Window& window);
    fabricshm::Result<void> carry_out(const CacheQuota& action, const Decision& decision,
                                      const Window& window);
    void remember(const TickResult& result);
    void remember(const DecisionOutcome& outcome);

    ControllerParts parts_;
    WindowMaker maker_;
    std::optional<DecisionJournal> journal_;
    bool journal_failed_ = false;
    std::uint64_t first_id_ = 0;  // of the decisions before this daemon's, the last one's
    bool had_news_ = false;
    std::uint64_t not_journalled_ = 0;
    std::uint64_t last_sample_ = 0;
    std::optional<Loop> loop_;

    mutable std::mutex mutex_;  // guards what follows
    std::condition_variable wake_;
    bool stopping_ = false;
    std::deque<Decision> recent_;  // by id
    LoopCounters counters_;

    std::thread thread_;
};

}  // namespace fabricd
