#include "fabricd/data/mount/cache_source.hpp"

#include <fabricshm/data.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using namespace std::chrono_literals;
using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::Error;

namespace {

constexpr auto kBetweenTries = 20ms;

Error error_of_answer(int code, const char* step) {
    const Error error{static_cast<Errc>(-code), 0, step};
    return fabricshm::explain(error, "%s", fabricshm_error_text());
}

std::int64_t milliseconds_until(TimePoint deadline) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    return std::clamp<std::int64_t>(left, 0, 3'600'000);
}

class CacheListing : public MountListing {
  public:
    CacheListing(std::shared_ptr<fabricshm_data> data, fabricshm_data_set* set)
        : data_(std::move(data)), set_(set, fabricshm_data_set_close) {}

    std::size_t count() const override { return fabricshm_data_set_count(set_.get()); }
    Result<MountEntry> entry(std::size_t index) const override;
    std::optional<std::size_t> find(std::string_view name) const override;
    Result<MountBytes> read(std::size_t index, Bytes offset, std::span<std::byte> room,
                            TimePoint deadline) const override;

  private:
    const std::shared_ptr<fabricshm_data> data_;
    const std::unique_ptr<fabricshm_data_set, void (*)(fabricshm_data_set*)> set_;
};

Result<MountEntry> CacheListing::entry(std::size_t index) const {
    fabricshm_data_entry found{};
    found.struct_size = sizeof found;
    const int code = fabricshm_data_set_entry(set_.get(), index, &found);
    if (code != 0) return error_of_answer(code, "read listing");
    MountEntry entry;
    entry.name.assign(found.name, found.name_bytes);
    entry.facts.is_folder = (found.flags & FABRICSHM_DATA_FOLDER) != 0;
    if (entry.facts.is_folder) return entry;
    entry.facts.bytes = found.bytes;
    entry.facts.mtime_ns = found.mtime_ns;
    std::uint64_t stamp = mix_hash(0, found.bytes);
    for (const std::uint64_t word : found.version) stamp = mix_hash(stamp, word);
    entry.facts.stamp = std::max<std::uint64_t>(stamp, 1);
    return entry;
}

std::optional<std::size_t> CacheListing::find(std::string_view name) const {
    std::uint64_t index = 0;
    const std::string terminated(name);
    if (fabricshm_data_set_find(set_.get(), terminated.c_str(), &index) != 0) return std::nullopt;
    return index;
}

// A view where all of it lies in one chunk and there is a slot to pin it; a copy otherwise.
Result<MountBytes> CacheListing::read(std::size_t index, Bytes offset, std::span<std::byte> room,
                                      TimePoint deadline) const {
    fabricshm_data_view view{};
    const int code =
        fabricshm_data_acquire(set_.get(), index, offset, milliseconds_until(deadline), &view);
    if (code != 0 && code != FABRICSHM_EBUSY) return error_of_answer(code, "read file");
    if (code == 0) {
        const std::shared_ptr<const void> hold(view.bytes, [set = set_.get(), view](const void*) {
            fabricshm_data_release(set, &view);
        });
        const auto* const bytes = static_cast<const std::byte*>(view.bytes);
        if (view.length >= room.size()) return MountBytes{{bytes, room.size()}, hold};
    }
    std::uint64_t got = 0;
    const int copied = fabricshm_data_read(set_.get(), index, offset, room.data(), room.size(),
                                           milliseconds_until(deadline), &got);
    if (copied != 0) return error_of_answer(copied, "read file");
    return MountBytes{room.first(got), nullptr};
}

}  // namespace

CacheSource::CacheSource(std::string path, std::string socket)
    : path_(path == "/" ? "" : std::move(path)), socket_(std::move(socket)) {}

// A server that comes back while the service is away waits for it with the first request.
Result<std::shared_ptr<fabricshm_data>> CacheSource::data(TimePoint deadline) {
    const std::unique_lock hold(lock_, deadline);
    if (!hold.owns_lock()) return Error{Errc::kTimeout, 0, "open data"};
    while (!data_) {
        fabricshm_data* opened = nullptr;
        const char* const socket = socket_.empty() ? nullptr : socket_.c_str();
        const int code = fabricshm_data_open(nullptr, socket, &opened);
        if (code == 0) {
            data_ = std::shared_ptr<fabricshm_data>(opened, fabricshm_data_close);
            break;
        }
        const bool may_come = code == FABRICSHM_EDAEMON || code == FABRICSHM_ETIMEOUT;
        if (!may_come || Clock::now() + kBetweenTries > deadline)
            return error_of_answer(code, "open data");
        std::this_thread::sleep_for(kBetweenTries);
    }
    return data_;
}

// Also of a file there is a listing, which has that file alone: no folder that could be mounted.
Result<void> CacheSource::check_is_folder(TimePoint deadline) {
    if (path_.empty()) return {};
    FABRIC_TRY(const auto opened, data(deadline));
    fabricshm_data_set* set = nullptr;
    const int code = fabricshm_data_list(opened.get(), path_.c_str(), FABRICSHM_DATA_FILE,
                                         milliseconds_until(deadline), &set);
    fabricshm_data_set_close(set);
    if (code != 0) return {};  // it is none, or what is wrong is said where it is listed
    return fabricshm::explain({Errc::kInvalid, 0, "mount"},
                              "%s is a file: a folder of the data cache is what can be mounted",
                              path_.c_str());
}

Result<void> CacheSource::open(TimePoint deadline) {
    FABRIC_TRY_VOID(check_is_folder(deadline));
    const auto root = list("", deadline);
    return root.ok() ? Result<void>{} : Result<void>{root.error()};
}

Result<std::shared_ptr<const MountListing>> CacheSource::list(const std::string& path,
                                                              TimePoint deadline) {
    FABRIC_TRY(auto opened, data(deadline));
    std::string whole = path_ + (path.empty() ? "" : "/" + path);
    if (whole.empty()) whole = "/";
    fabricshm_data_set* set = nullptr;
    const int code =
        fabricshm_data_list(opened.get(), whole.c_str(), 0, milliseconds_until(deadline), &set);
    if (code != 0) return error_of_answer(code, "list folder");
    return std::shared_ptr<const MountListing>(
        std::make_shared<CacheListing>(std::move(opened), set));
}

}  // namespace fabricd
