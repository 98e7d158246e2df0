#include "libfabricshm/client/data_client.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include "libfabricshm/base/reason.hpp"

namespace fabricshm {

namespace {

// Between two attempts while the service is away or begins again.
constexpr Duration kFirstDataPause = std::chrono::milliseconds(2);
constexpr Duration kLongestDataPause = std::chrono::milliseconds(50);

// Sleeps, and makes the next pause longer. False: the deadline comes first.
bool rest(Duration& pause, TimePoint deadline) {
    if (Clock::now() + pause >= deadline) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestDataPause);
    return true;
}

}  // namespace

DataProcess::DataProcess(const DataOptions& options, std::atomic<std::uint32_t>& pages)
    : generation_(fork_guard::generation()),
      channel_(options.sockets),
      subscribe_(options.make_subscriber()),
      pages_made_(pages) {}

Result<const DataWay*> DataProcess::renew(const DataWay* known, TimePoint deadline) {
    const Turnstile::Turn turn = renewing_.enter(deadline);
    if (!turn) return Error{Errc::kTimeout, 0, "wait for the data service"};
    if (way() != known) return way();  // another thread did it
    for (Duration pause = kFirstDataPause;;) {
        auto found = find_way(known, deadline);
        // kBusy: between two states. kNotFound: the arena is not published yet.
        const bool may_come = !found.ok() && (found.error().code == Errc::kDaemon ||
                                              found.error().code == Errc::kBusy ||
                                              found.error().code == Errc::kNotFound);
        if (!may_come || !rest(pause, deadline)) return found;
    }
}

// One attempt.
Result<const DataWay*> DataProcess::find_way(const DataWay* known, TimePoint deadline) {
    const std::uint64_t breaks = channel_.breaks();
    FABRIC_TRY(const proto::DataHelloReply hello, channel_.greet(deadline));
    if (known != nullptr && known->page->is_held()) {
        const auto tables = known->page->read_tables();
        if (tables.ok() && tables->generation == hello.generation) {
            breaks_seen_.store(breaks, std::memory_order_relaxed);
            if (*tables == known->tables) return known;
            return adopt(known->page, *tables);
        }
    }
    FABRIC_TRY(DataArena arena, subscribe_(hello.arena, deadline));
    FABRIC_TRY(const DataTables tables, read_data_header(arena.base, arena.bytes));
    if (tables.generation != hello.generation) {
        return explain({Errc::kBusy, 0, "map the data"}, "the data service has just begun again");
    }
    const std::uint32_t number = 1 + pages_made_.fetch_add(1) % DataPage::kMaxNumber;
    auto page = std::make_unique<DataPage>(std::move(arena), number);
    DataPage* const made = page.get();
    {
        const std::lock_guard lock(mutex_);
        page_list_.push_back(std::move(page));
    }
    breaks_seen_.store(breaks, std::memory_order_relaxed);
    return adopt(made, tables);
}

const DataWay* DataProcess::adopt(DataPage* page, const DataTables& tables) {
    const std::lock_guard lock(mutex_);
    ways_.push_back(std::make_unique<DataWay>(DataWay{page, tables}));
    const DataWay* const made = ways_.back().get();
    way_.store(made, std::memory_order_seq_cst);
    for (const auto& other : page_list_) {
        if (other.get() != page) other->retire();
    }
    return made;
}

Result<void> DataProcess::fetch(const DataWay& way, const DataWant& want, TimePoint deadline) {
    constexpr const char* kStep = "fetch";
    const std::string request =
        proto::data_payload(proto::DataFetchRequest{want.file, want.line, proto::kDataOnDemand, 0});
    for (Duration pause = kFirstDataPause;;) {
        const auto answer = channel_.call(proto::DataType::kFetch, request, kStep, deadline);
        if (!answer.ok() && answer.error().code == Errc::kDaemon) {
            if (!rest(pause, deadline)) return answer.error();
            continue;
        }
        // Another service than the one that the way was compared with may have answered, whose
        // tables are others. So it is when what was asked for is unknown there.
        const bool is_unknown = !answer.ok() && (answer.error().code == Errc::kNotFound ||
                                                 answer.error().code == Errc::kInvalid);
        const bool may_differ = channel_.breaks() != breaks_seen_.load(std::memory_order_relaxed) ||
                                is_unknown || !way.page->is_held();
        if (!may_differ) return answer.ok() ? Result<void>() : Result<void>(answer.error());
        const std::string reason = answer.ok() ? "" : explanation_of(answer.error());
        FABRIC_TRY(const DataWay* const now, renew(&way, deadline));
        if (now != &way || answer.ok()) return {};
        return explain(answer.error(), "%s", reason.c_str());
    }
}

Result<void> DataProcess::announce(const void* owner, const std::string& plan, const char* step,
                                   TimePoint deadline) {
    FABRIC_TRY(DataChannel::Apart announced,
               channel_.call_apart(proto::DataType::kPlan, plan, step, deadline));
    // The one of before ends behind this one, so that what both keep is not let go in between.
    const std::lock_guard lock(mutex_);
    plans_[owner] = std::move(announced.connection);
    return {};
}

void DataProcess::end_plan(const void* owner) noexcept {
    const std::lock_guard lock(mutex_);
    plans_.erase(owner);
}

DataPage* DataProcess::page_of(std::uint64_t handle) noexcept {
    const std::uint32_t number = DataPage::number_of(handle);
    const DataWay* const now = way();
    if (now != nullptr && now->page->number() == number) return now->page;
    const std::lock_guard lock(mutex_);
    for (const auto& page : page_list_) {
        if (page->number() == number) return page.get();
    }
    return nullptr;
}

bool DataProcess::release(std::uint64_t handle) noexcept {
    DataPage* const page = page_of(handle);
    if (page == nullptr || !page->release(handle)) return false;
    if (__builtin_expect(page->is_retired(), false)) sweep();
    return true;
}

// The last view of a mapping that is not the current one may have gone.
void DataProcess::sweep() noexcept {
    const std::lock_guard lock(mutex_);
    for (const auto& page : page_list_) {
        if (page->is_retired()) page->retire();
    }
}

std::size_t DataProcess::held_by(const void* owner) const noexcept {
    const std::lock_guard lock(mutex_);
    std::size_t count = 0;
    for (const auto& page : page_list_) count += page->held_by(owner);
    return count;
}

std::size_t DataProcess::held() const noexcept {
    const std::lock_guard lock(mutex_);
    std::size_t count = 0;
    for (const auto& page : page_list_) count += page->pins().claimed();
    return count;
}

DataCounts DataProcess::counts() const noexcept {
    const std::lock_guard lock(mutex_);
    DataCounts sum;
    for (const auto& page : page_list_) {
        const DataCounts counts = page->counts();
        sum.hits += counts.hits;
        sum.misses += counts.misses;
        sum.stall_ns += counts.stall_ns;
        sum.bytes += counts.bytes;
        sum.copies += counts.copies;
    }
    return sum;
}

DataClient::DataClient(DataOptions options)
    : options_(std::move(options)), process_(new DataProcess(options_, pages_made_)) {}

Result<std::shared_ptr<DataClient>> DataClient::open(DataOptions options) {
    std::shared_ptr<DataClient> client(new DataClient(std::move(options)));
    // Once, but for a service that is between two states.
    const TimePoint soon =
        deadline_from_now(std::min<Duration>(client->timeout(), std::chrono::seconds(5)));
    DataProcess& process = client->process();
    FABRIC_TRY_VOID([&]() -> Result<void> {
        FABRIC_TRY([[maybe_unused]] const auto hello, process.channel().greet(soon));
        return {};
    }());
    FABRIC_TRY([[maybe_unused]] const DataWay* const way, process.renew(nullptr, soon));
    return client;
}

DataClient::~DataClient() {
    DataProcess* const process = process_.load(std::memory_order_acquire);
    // The parent's is left alone in a child: as a leak on purpose.
    if (process->generation() == fork_guard::generation()) delete process;
}

DataProcess& DataClient::process_after_fork(DataProcess* parents) {
    auto own = std::make_unique<DataProcess>(options_, pages_made_);
    DataProcess* found = parents;
    // Release: another thread that finds it finds it made. One of two threads that come at once
    // has made it for both.
    if (process_.compare_exchange_strong(found, own.get(), std::memory_order_acq_rel)) {
        return *own.release();
    }
    return *found;
}

}  // namespace fabricshm
