#include "libfabricshm/python/shard.hpp"

#include <utility>

#include "libfabricshm/python/errors.hpp"

namespace fabricshm::python {

Shard Shard::create(std::shared_ptr<ArenaHandle> arena, const std::string& name, int dtype,
                    const std::vector<std::int64_t>& shape) {
    fabricshm_shard* made = nullptr;
    check(without_lock([&] {
        return fabricshm_shard_create(arena->arena, name.c_str(),
                                      static_cast<fabricshm_dtype>(dtype),
                                      static_cast<int>(shape.size()), shape.data(), &made);
    }));
    return Shard(std::make_shared<ShardHandle>(std::move(arena), made));
}

Shard Shard::open(std::shared_ptr<ArenaHandle> arena, const std::string& name,
                  std::int64_t timeout_ms) {
    fabricshm_shard* found = nullptr;
    check(without_lock(
        [&] { return fabricshm_shard_open(arena->arena, name.c_str(), timeout_ms, &found); }));
    return Shard(std::make_shared<ShardHandle>(std::move(arena), found));
}

fabricshm_shard* Shard::get() const {
    if (handle_ == nullptr) raise_closed("shard");
    return handle_->shard;
}

ShardView Shard::read(std::uint64_t version, std::int64_t timeout_ms) const {
    fabricshm_shard* shard = get();
    ShardView view{handle_->arena, {}};
    check(
        without_lock([&] { return fabricshm_shard_read(shard, version, timeout_ms, &view.view); }));
    return view;
}

bool Shard::release(const ShardView& view) const {
    // Busy is an answer here: the owner wrote meanwhile, and the caller reads again.
    const int code = fabricshm_shard_release(get(), &view.view);
    if (code != FABRICSHM_EBUSY) check(code);
    return code == FABRICSHM_OK;
}

ShardView Shard::write() const {
    fabricshm_shard* shard = get();
    ShardView view{handle_->arena, {}};
    check(without_lock([&] { return fabricshm_shard_write(shard, &view.view); }));
    return view;
}

std::uint64_t Shard::publish() const {
    std::uint64_t version = 0;
    check(fabricshm_shard_publish(get(), &version));
    return version;
}

void Shard::move(const std::string& target, std::uint64_t bytes_per_second) const {
    fabricshm_shard* shard = get();
    check(without_lock(
        [&] { return fabricshm_shard_move(shard, target.c_str(), bytes_per_second); }));
}

void Shard::free() const {
    fabricshm_shard* shard = get();
    check(without_lock([&] { return fabricshm_shard_free(shard); }));
}

}  // namespace fabricshm::python
