// data.hpp: C++20 owners over data.h. Header only; the rules are those of data.h, the types those
// of fabricshm.hpp.
//
//   auto data = fabric::Data::open();
//   auto set = data->list("/images/train", fabric::kRecursive);
//   auto view = set->view(17);
//   use(view->bytes());      // straight in the pool, until the view goes

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fabricshm/data.h>
#include <fabricshm/fabricshm.hpp>

namespace fabricshm::api {

/// For Data::list().
inline constexpr std::uint32_t kRecursive = FABRICSHM_DATA_RECURSIVE;
inline constexpr std::uint32_t kOneFile = FABRICSHM_DATA_FILE;

/// A file or folder of a listing. `name` is as long as the set.
struct DataEntry {
    std::string_view name;
    std::uint64_t bytes = 0;
    bool is_folder = false;
    std::int64_t mtime_ns = 0;  // 0: not known
    std::array<std::uint64_t, 4> version{};
};

/// Bytes in the pool that stay as they are until this goes. Keeps its set open.
class DataView {
  public:
    DataView(std::shared_ptr<fabricshm_data_set> set, const fabricshm_data_view& view)
        : set_(std::move(set)), view_(view) {}
    DataView(DataView&&) noexcept = default;
    DataView& operator=(DataView&& other) noexcept {
        release();
        set_ = std::move(other.set_);
        view_ = other.view_;
        return *this;
    }
    ~DataView() { release(); }

    std::span<const std::byte> bytes() const noexcept {
        return {static_cast<const std::byte*>(view_.bytes), view_.length};
    }
    std::string_view text() const noexcept {
        return {static_cast<const char*>(view_.bytes), view_.length};
    }

    /// Lets the bytes go now. They must not be read any more. Twice is nothing.
    void release() noexcept {
        if (set_ != nullptr) fabricshm_data_release(set_.get(), &view_);
        set_.reset();
        view_ = {};
    }

  private:
    std::shared_ptr<fabricshm_data_set> set_;
    fabricshm_data_view view_;
};

/// A listing. Any thread.
class DataSet {
  public:
    explicit DataSet(fabricshm_data_set* set) : handle_(set, fabricshm_data_set_close) {}

    fabricshm_data_set* get() const noexcept { return handle_.get(); }

    /// How many entries.
    std::uint64_t size() const noexcept { return fabricshm_data_set_count(get()); }

    Expected<DataEntry> entry(std::uint64_t index) const {
        fabricshm_data_entry entry{};
        entry.struct_size = sizeof entry;
        if (const int code = fabricshm_data_set_entry(get(), index, &entry); code < 0) {
            return detail::last_error(code);
        }
        return DataEntry{{entry.name, entry.name_bytes},
                         entry.bytes,
                         (entry.flags & FABRICSHM_DATA_FOLDER) != 0,
                         entry.mtime_ns,
                         {entry.version[0], entry.version[1], entry.version[2], entry.version[3]}};
    }

    Expected<std::uint64_t> find(std::string_view name) const {
        std::uint64_t index = 0;
        const int code = fabricshm_data_set_find(get(), std::string(name).c_str(), &index);
        if (code < 0) return detail::last_error(code);
        return index;
    }

    /// From `offset` to the end of that chunk; of a file of at most FABRICSHM_DATA_CHUNK bytes all.
    Expected<DataView> view(std::uint64_t index, std::uint64_t offset = 0,
                            std::int64_t timeout_ms = FABRICSHM_TIMEOUT_DEFAULT) const {
        fabricshm_data_view view{};
        const int code = fabricshm_data_acquire(get(), index, offset, timeout_ms, &view);
        if (code < 0) return detail::last_error(code);
        return DataView(handle_, view);
    }

    /// A copy from `offset` on; the number of bytes, which is less at the end of the file alone.
    Expected<std::uint64_t> read(std::uint64_t index, std::uint64_t offset,
                                 std::span<std::byte> into,
                                 std::int64_t timeout_ms = FABRICSHM_TIMEOUT_DEFAULT) const {
        std::uint64_t got = 0;
        const int code =
            fabricshm_data_read(get(), index, offset, into.data(), into.size(), timeout_ms, &got);
        if (code < 0) return detail::last_error(code);
        return got;
    }

    /// A copy of the whole file.
    Expected<std::vector<std::byte>> read(
        std::uint64_t index, std::int64_t timeout_ms = FABRICSHM_TIMEOUT_DEFAULT) const {
        auto found = entry(index);
        if (!found) return found.error();
        std::vector<std::byte> bytes(found->bytes);
        auto got = read(index, 0, bytes, timeout_ms);
        if (!got) return got.error();
        return bytes;
    }

    /// See fabricshm_data_announce().
    Status announce(const fabricshm_data_plan& plan) const {
        return detail::status_of(fabricshm_data_announce(get(), &plan));
    }

  private:
    std::shared_ptr<fabricshm_data_set> handle_;
};

/// A file that is being written. Goes without a trace unless it is committed.
class DataWriter {
  public:
    explicit DataWriter(fabricshm_data_writer* writer) : handle_(writer) {}

    Status write(std::span<const std::byte> bytes,
                 std::int64_t timeout_ms = FABRICSHM_TIMEOUT_DEFAULT) {
        return detail::status_of(
            fabricshm_data_write(handle_.get(), bytes.data(), bytes.size(), timeout_ms));
    }

    /// The silo has the file when this succeeds. Nothing follows.
    Status commit(std::int64_t timeout_ms = FABRICSHM_TIMEOUT_DEFAULT) {
        return detail::status_of(fabricshm_data_commit(handle_.release(), timeout_ms));
    }

  private:
    struct Abort {
        void operator()(fabricshm_data_writer* writer) const { fabricshm_data_abort(writer); }
    };
    std::unique_ptr<fabricshm_data_writer, Abort> handle_;
};

/// This process's way to the data of its host. Any thread; also in a child of fork().
class Data {
  public:
    explicit Data(fabricshm_data* data) : handle_(data, fabricshm_data_close) {}

    /// With a session of its own. `socket`: the data service's; "": the default.
    static Expected<Data> open(const std::string& socket = "") {
        return open_from(nullptr, socket);
    }
    /// Attached as `session` is.
    static Expected<Data> open(const Session& session, const std::string& socket = "") {
        return open_from(session.get(), socket);
    }

    fabricshm_data* get() const noexcept { return handle_.get(); }

    Expected<DataSet> list(std::string_view path, std::uint32_t flags = 0,
                           std::int64_t timeout_ms = FABRICSHM_TIMEOUT_DEFAULT) const {
        fabricshm_data_set* set = nullptr;
        const int code =
            fabricshm_data_list(get(), std::string(path).c_str(), flags, timeout_ms, &set);
        if (code < 0) return detail::last_error(code);
        return DataSet(set);
    }

    Expected<DataWriter> create(std::string_view path,
                                std::int64_t timeout_ms = FABRICSHM_TIMEOUT_DEFAULT) const {
        fabricshm_data_writer* writer = nullptr;
        const int code =
            fabricshm_data_create(get(), std::string(path).c_str(), timeout_ms, &writer);
        if (code < 0) return detail::last_error(code);
        return DataWriter(writer);
    }

    fabricshm_data_stats stats() const noexcept {
        fabricshm_data_stats stats{};
        stats.struct_size = sizeof stats;
        fabricshm_data_get_stats(get(), &stats);
        return stats;
    }

  private:
    static Expected<Data> open_from(fabricshm_session* session, const std::string& socket) {
        fabricshm_data* data = nullptr;
        const int code =
            fabricshm_data_open(session, socket.empty() ? nullptr : socket.c_str(), &data);
        if (code < 0) return detail::last_error(code);
        return Data(data);
    }

    std::shared_ptr<fabricshm_data> handle_;
};

}  // namespace fabricshm::api
