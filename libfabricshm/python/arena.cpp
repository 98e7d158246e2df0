#include "libfabricshm/python/arena.hpp"

#include <utility>

#include "libfabricshm/python/errors.hpp"
#include "libfabricshm/python/group.hpp"

namespace fabricshm::python {

void Region::free() const {
    check(without_lock([&] { return fabricshm_region_free(arena->arena, region.id); }));
}

std::vector<std::int64_t> NamedTensor::shape() const {
    return {tensor.shape, tensor.shape + tensor.ndim};
}

std::uint64_t NamedTensor::publish() const {
    std::uint64_t version = 0;
    check(without_lock([&] { return fabricshm_tensor_publish(arena->arena, &tensor, &version); }));
    return version;
}

std::uint64_t NamedTensor::wait(std::uint64_t version, std::int64_t timeout_ms) const {
    std::uint64_t seen = 0;
    check(without_lock(
        [&] { return fabricshm_tensor_wait(arena->arena, &tensor, version, timeout_ms, &seen); }));
    return seen;
}

void NamedTensor::free() const {
    check(without_lock([&] { return fabricshm_tensor_free(arena->arena, &tensor); }));
}

const std::shared_ptr<ArenaHandle>& Arena::open() const {
    // Everything goes through here, so that a closed arena raises and never reaches the library.
    if (closed()) raise_closed("arena");
    return handle_;
}

std::uint64_t Arena::bytes() const {
    return fabricshm_arena_bytes(open()->arena);
}

bool Arena::contains(const pybind11::array& array) const {
    // Addresses are compared: the same arena mapped by another session is another place.
    const auto* base = static_cast<const char*>(fabricshm_arena_base(open()->arena));
    const auto* data = static_cast<const char*>(array.data());
    return data >= base && data < base + bytes();
}

Bytes Arena::allocate(std::uint64_t bytes) const {
    return new_array(open(), bytes);
}

Region Arena::create_region(std::uint64_t bytes) const {
    // `made` holds the arena while the interpreter's lock is given up: another thread may close it.
    Region made{open(), {}};
    check(without_lock(
        [&] { return fabricshm_region_create(made.arena->arena, bytes, &made.region); }));
    return made;
}

Region Arena::open_region(std::uint64_t id) const {
    Region found{open(), {}};
    check(
        without_lock([&] { return fabricshm_region_open(found.arena->arena, id, &found.region); }));
    return found;
}

NamedTensor Arena::create_tensor(const std::string& name, int dtype,
                                 const std::vector<std::int64_t>& shape) const {
    NamedTensor made{open(), {}};
    check(without_lock([&] {
        return fabricshm_tensor_create(made.arena->arena, name.c_str(),
                                       static_cast<fabricshm_dtype>(dtype),
                                       static_cast<int>(shape.size()), shape.data(), &made.tensor);
    }));
    return made;
}

NamedTensor Arena::open_tensor(const std::string& name, std::int64_t timeout_ms) const {
    NamedTensor found{open(), {}};
    check(without_lock([&] {
        return fabricshm_tensor_open(found.arena->arena, name.c_str(), timeout_ms, &found.tensor);
    }));
    return found;
}

std::shared_ptr<Group> Arena::join(const std::string& name, int rank, int world,
                                   std::int64_t timeout_ms) {
    const std::shared_ptr<ArenaHandle> arena = open();
    fabricshm_group* joined = nullptr;
    check(without_lock([&] {
        return fabricshm_group_join(arena->arena, name.c_str(), rank, world, timeout_ms, &joined);
    }));
    auto group = std::make_shared<Group>(std::make_shared<GroupHandle>(arena, joined));
    // Groups that Python dropped have left already; the list would grow with every join.
    std::erase_if(groups_, [](const auto& held) { return held.expired(); });
    groups_.push_back(group);
    return group;
}

void Arena::close() {
    // Groups first, since each of them holds the arena.
    for (const auto& held : groups_) {
        if (auto group = held.lock()) group->leave();
    }
    groups_.clear();
    // Closing waits for what was started in the arena: other Python threads run meanwhile.
    without_lock([gone = std::move(handle_)]() mutable { gone.reset(); });
}

}  // namespace fabricshm::python
