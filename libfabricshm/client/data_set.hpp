// DataSet: a listing, and views and copies of its files.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/client/data_client.hpp"
#include "libfabricshm/os/mapping.hpp"
#include "libfabricshm/proto/data_messages.hpp"
#include "libfabricshm/shm/data_listing.hpp"

namespace fabricshm {

/// Bytes that are pinned; `handle` is 0 when there are none.
struct DataView {
    const std::byte* bytes = nullptr;
    Bytes length = 0;
    std::uint64_t handle = 0;
};

/// Thread-safe, also in a child of fork().
class DataSet {
  public:
    /// A flag of list(): the path is a file, and the set has that file alone.
    static constexpr std::uint32_t kOneFile = 2;

    /// kNotFound, the silo's errors, kDaemon and kTimeout after `deadline`.
    static Result<std::unique_ptr<DataSet>> list(std::shared_ptr<DataClient> client,
                                                 std::string path, std::uint32_t flags,
                                                 TimePoint deadline);

    ~DataSet();
    DataSet(const DataSet&) = delete;
    DataSet& operator=(const DataSet&) = delete;

    const ListingView& listing() const noexcept { return listing_.view; }
    const std::string& path() const noexcept { return path_; }
    DataClient& client() const noexcept { return *client_; }
    const std::shared_ptr<DataClient>& shared_client() const noexcept { return client_; }

    /// See fabricshm_data_acquire(). The clock is read only when something has to be waited for. A
    /// timeout of 0 asks nothing of the service.
    Result<DataView> acquire(std::uint64_t index, Bytes offset, Duration timeout);
    /// False: this process does not hold it.
    bool release(std::uint64_t handle) noexcept { return client_->process().release(handle); }
    /// How many views this process holds.
    std::size_t held() const noexcept { return client_->process().held_by(this); }

    /// See fabricshm_data_read().
    Result<Bytes> read(std::uint64_t index, Bytes offset, std::span<std::byte> into,
                       Duration timeout);

    /// The request is filled in but for the listing.
    Result<void> announce(proto::DataPlanRequest request, TimePoint deadline);

  private:
    struct Listing {
        Mapping mapping;
        std::vector<std::byte> own;  // of one file, made here
        ListingView view;
    };
    // Where a file is in the tables of one generation; `file` is 0 where its version is no more.
    struct Place {
        std::uint64_t first_line = 0;
        std::uint64_t file = 0;
    };
    // All files in tables that are others than the listing's.
    struct Places {
        std::uint64_t generation = 0;
        std::uint64_t listing = 0;
        std::vector<Place> of;
        const Places* older = nullptr;
    };
    // A chunk, or a part of one.
    struct Piece {
        std::uint64_t index = 0;
        std::uint32_t chunk = 0;
        std::uint32_t used = 0;  // bytes of it
    };
    enum class Slots { kViews, kAll };
    struct Wait {
        TimePoint deadline;
        bool may_ask = true;
        bool is_fetched = false;
    };
    struct Aim {
        const DataWay* way = nullptr;
        DataWant want;
    };

    DataSet(std::shared_ptr<DataClient> client, std::string path, std::uint32_t flags)
        : client_(std::move(client)), path_(std::move(path)), flags_(flags) {}

    static Result<Listing> ask(DataClient& client, const std::string& path, std::uint32_t flags,
                               TimePoint deadline);
    static Result<Listing> take(const DataChannel::Answer& answer, const DataWay& way);
    static Result<Listing> take_file(const DataChannel::Answer& answer, const std::string& path,
                                     const DataWay& way);
    Result<const DataEntry*> file_at(std::uint64_t index) const;
    Result<DataHold> pin(const Piece& piece, Slots slots, Duration timeout);
    Result<DataHold> pin_slowly(const Piece& piece, Slots slots, Duration timeout);
    std::optional<DataWant> want_in(const DataWay& way, const Piece& piece) const noexcept;
    DataFinding try_pin(DataProcess& process, const DataWay& way, const DataWant& want, bool kept,
                        DataHold& hold) const noexcept;
    DataFinding try_kept(DataProcess& process, const Aim& aim, TimePoint deadline,
                         DataHold& hold) const noexcept;
    Result<Aim> find_aim(const Piece& piece, const Wait& wait);
    Result<void> make_ready(DataFinding found, const Aim& aim, Wait& wait);
    Result<void> find_places(const DataWay& way, TimePoint deadline);
    const Places* places_of(const Listing& fresh) const;
    std::uint64_t listing_in(const DataWay& way) const noexcept;

    const std::shared_ptr<DataClient> client_;
    const std::string path_;
    const std::uint32_t flags_;
    Listing listing_;
    // The newest; older ones may still be looked at by other threads. A list, so that a fork at any
    // moment leaves it whole.
    std::atomic<const Places*> places_{nullptr};
};

}  // namespace fabricshm
