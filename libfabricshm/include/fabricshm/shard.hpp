// shard.hpp: C++20 owners over shard.h. Header only; the rules are those of shard.h, the types
// those of fabricshm.hpp.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <fabricshm/shard.h>
#include <fabricshm/fabricshm.hpp>

namespace fabricshm::api {

/// A read under way. Ends with finish(), which says whether it was one version; one that just goes
/// is ended, too, and what was read must not be used.
class ShardRead {
  public:
    ShardRead(std::shared_ptr<fabricshm_shard> shard, const fabricshm_shard_view& view)
        : shard_(std::move(shard)), view_(view) {}
    ShardRead(ShardRead&&) noexcept = default;
    ShardRead& operator=(ShardRead&&) = delete;
    ~ShardRead() {
        if (shard_ != nullptr) fabricshm_shard_release(shard_.get(), &view_);
    }

    const fabricshm_shard_view& view() const noexcept { return view_; }

    /// Its elements; empty when T is not its type.
    template <typename T>
    std::span<const T> as() const noexcept {
        if (kDTypeOf<T> != view_.dtype) return {};
        return {static_cast<const T*>(view_.data), view_.bytes / sizeof(T)};
    }

    /// FABRICSHM_EBUSY: the owner wrote meanwhile. A second call succeeds at once.
    Status finish() {
        if (shard_ == nullptr) return std::monostate{};
        const auto shard = std::exchange(shard_, nullptr);
        return detail::status_of(fabricshm_shard_release(shard.get(), &view_));
    }

  private:
    std::shared_ptr<fabricshm_shard> shard_;
    fabricshm_shard_view view_;
};

/// A named tensor that moves while it is read.
class Shard {
  public:
    template <typename T>
    static Expected<Shard> create(const Arena& arena, std::string_view name,
                                  std::span<const std::int64_t> shape) {
        fabricshm_shard* shard = nullptr;
        const int code =
            fabricshm_shard_create(arena.get(), std::string(name).c_str(), kDTypeOf<T>,
                                   static_cast<int>(shape.size()), shape.data(), &shard);
        if (code < 0) return detail::last_error(code);
        return Shard(arena, shard);
    }

    /// Waits until it has been made.
    static Expected<Shard> open(const Arena& arena, std::string_view name,
                                std::int64_t timeout_ms = FABRICSHM_TIMEOUT_DEFAULT) {
        fabricshm_shard* shard = nullptr;
        const int code =
            fabricshm_shard_open(arena.get(), std::string(name).c_str(), timeout_ms, &shard);
        if (code < 0) return detail::last_error(code);
        return Shard(arena, shard);
    }

    fabricshm_shard* get() const noexcept { return handle_.get(); }

    /// Begins to read `version` or a later one.
    Expected<ShardRead> read(std::uint64_t version = 0,
                             std::int64_t timeout_ms = FABRICSHM_TIMEOUT_DEFAULT) {
        fabricshm_shard_view view{};
        const int code = fabricshm_shard_read(handle_.get(), version, timeout_ms, &view);
        if (code < 0) return detail::last_error(code);
        return ShardRead(handle_, view);
    }

    /// Where to write until publish(); empty when T is not its type. By the owner.
    template <typename T>
    Expected<std::span<T>> write() {
        fabricshm_shard_view view{};
        const int code = fabricshm_shard_write(handle_.get(), &view);
        if (code < 0) return detail::last_error(code);
        if (kDTypeOf<T> != view.dtype) return std::span<T>();
        return std::span<T>(static_cast<T*>(view.data), view.bytes / sizeof(T));
    }

    Expected<std::uint64_t> publish() {
        std::uint64_t version = 0;
        const int code = fabricshm_shard_publish(handle_.get(), &version);
        if (code < 0) return detail::last_error(code);
        return version;
    }

    /// Begins to move it; see fabricshm_shard_move().
    Status move(std::string_view target, std::uint64_t bytes_per_second = 0) {
        return detail::status_of(
            fabricshm_shard_move(handle_.get(), std::string(target).c_str(), bytes_per_second));
    }

    Status free() { return detail::status_of(fabricshm_shard_free(handle_.get())); }

  private:
    // The deleter holds the arena, which the handle stands on.
    Shard(const Arena& arena, fabricshm_shard* shard)
        : handle_(shard, [arena](fabricshm_shard* closed) { fabricshm_shard_close(closed); }) {}

    std::shared_ptr<fabricshm_shard> handle_;
};

}  // namespace fabricshm::api
