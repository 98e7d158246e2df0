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

// A reference of the caller's own: while it is without the interpreter's lock another thread may
// close the shard, which then goes with the last call that is under way.
std::shared_ptr<ShardHandle> Shard::held() const {
    if (handle_ == nullptr) raise_closed("shard");
    return handle_;
}

ShardView Shard::read(std::uint64_t version, std::int64_t timeout_ms) const {
    const std::shared_ptr<ShardHandle> handle = held();
    ShardView view{handle->arena, {}};
    check(without_lock(
        [&] { return fabricshm_shard_read(handle->shard, version, timeout_ms, &view.view); }));
    return view;
}

bool Shard::release(const ShardView& view) const {
    // Busy is an answer here: the owner wrote meanwhile, and the caller reads again.
    const int code = fabricshm_shard_release(held()->shard, &view.view);
    if (code != FABRICSHM_EBUSY) check(code);
    return code == FABRICSHM_OK;
}

ShardView Shard::write() const {
    const std::shared_ptr<ShardHandle> handle = held();
    ShardView view{handle->arena, {}};
    check(without_lock([&] { return fabricshm_shard_write(handle->shard, &view.view); }));
    return view;
}

std::uint64_t Shard::publish() const {
    const std::shared_ptr<ShardHandle> handle = held();
    std::uint64_t version = 0;
    // On memory that is not coherent it writes the whole shard out of the caches.
    check(without_lock([&] { return fabricshm_shard_publish(handle->shard, &version); }));
    return version;
}

void Shard::move(const std::string& target, std::uint64_t bytes_per_second) const {
    const std::shared_ptr<ShardHandle> handle = held();
    check(without_lock(
        [&] { return fabricshm_shard_move(handle->shard, target.c_str(), bytes_per_second); }));
}

void Shard::free() const {
    const std::shared_ptr<ShardHandle> handle = held();
    check(without_lock([&] { return fabricshm_shard_free(handle->shard); }));
}

}  // namespace fabricshm::python
