#include "libfabricshm/python/arena.hpp"

#include <cstring>
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
    return keep(arena, joined);
}

namespace {

// The caller's exchange, and what it raised.
struct Exchange {
    const pybind11::function* gather;
    std::size_t world;
    std::optional<pybind11::error_already_set> raised;
    std::string wrong;

    void run(const void* mine, std::size_t bytes, void* all) {
        const pybind11::bytes own(static_cast<const char*>(mine), bytes);
        const pybind11::sequence gathered = (*gather)(own);
        if (gathered.size() != world) {
            wrong = "exchange: returned not one value for each rank";
            return;
        }
        for (std::size_t rank = 0; rank < world; ++rank) {
            const auto part = gathered[rank].cast<std::string>();
            if (part.size() != bytes) wrong = "exchange: returned bytes of another length";
            if (part.size() == bytes) {
                std::memcpy(static_cast<char*>(all) + rank * bytes, part.data(), bytes);
            }
        }
    }

    static int call(void* context, const void* mine, std::size_t bytes, void* all) {
        auto& self = *static_cast<Exchange*>(context);
        const pybind11::gil_scoped_acquire locked;
        try {
            self.run(mine, bytes, all);
        } catch (pybind11::error_already_set& error) {
            self.raised = error;
        } catch (const std::exception& error) {
            self.wrong = error.what();
        }
        return self.raised || !self.wrong.empty() ? 1 : 0;
    }
};

}  // namespace

std::shared_ptr<Group> Arena::join_hosts(const std::string& name, int rank, int world,
                                         const pybind11::function& exchange,
                                         const std::optional<std::string>& trusted,
                                         std::int64_t timeout_ms) {
    const std::shared_ptr<ArenaHandle> arena = open();
    Exchange context{&exchange, static_cast<std::size_t>(world), std::nullopt, {}};
    fabricshm_hosts_spec spec{};
    spec.struct_size = sizeof spec;
    spec.name = name.c_str();
    spec.rank = rank;
    spec.world = world;
    spec.exchange = &Exchange::call;
    spec.context = &context;
    spec.trusted = trusted ? trusted->c_str() : nullptr;
    spec.timeout_ms = timeout_ms;
    fabricshm_group* joined = nullptr;
    const int code =
        without_lock([&] { return fabricshm_group_join_hosts(arena->arena, &spec, &joined); });
    if (context.raised) throw *context.raised;
    if (!context.wrong.empty()) throw pybind11::value_error(context.wrong);
    check(code);
    return keep(arena, joined);
}

std::shared_ptr<Group> Arena::keep(const std::shared_ptr<ArenaHandle>& arena,
                                   fabricshm_group* joined) {
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
