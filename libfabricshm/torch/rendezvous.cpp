#include "libfabricshm/torch/rendezvous.hpp"

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <vector>

#include "libfabricshm/torch/job_arena.hpp"

namespace fabricshm::torch_backend {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// What rank 0 tells the others; one line each in the store.
struct Invitation {
    std::string host;
    std::string arena;
    std::string group;
    std::string error;  // not empty: rank 0 could not open the arena
};

// Unset and empty are the same.
std::string environment(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? std::string() : std::string(value);
}

// Digits and a binary unit, as fabricd takes them. A wrong one is an error of rank 0 alone, which
// tells it to the others in its invitation.
std::uint64_t arena_bytes() {
    const std::string text = environment("FABRIC_ARENA_BYTES");
    if (text.empty()) return 0;
    // Not strtoull(): that takes "-1" for a number, and the largest one for what is larger.
    std::uint64_t count = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
    const std::string unit(end);
    unsigned shift = 0;
    for (const char* known : {"K", "M", "G", "T"}) {
        shift += 10;
        if (unit == known || unit == std::string(known) + "iB") break;
        if (*known == 'T') shift = 0;
    }
    const bool has_unit = unit.empty() || shift != 0;
    const bool fits = count <= std::numeric_limits<std::uint64_t>::max() >> shift;
    TORCH_CHECK(error == std::errc{} && has_unit && fits, "FABRIC_ARENA_BYTES is \"", text,
                "\"; expected bytes, as 1073741824, 512M or 2G");
    return count << shift;
}

// Differs between hosts, and between boots of one.
std::string host_identity() {
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::string identity;
    std::getline(file, identity);
    return identity;
}

// 64 random bits: two jobs of one user on one daemon must not meet in one arena.
std::string random_name(const char* prefix) {
    std::random_device device;
    std::ostringstream name;
    name << prefix << std::hex << device() << device();
    return name.str();
}

// The error comes last, since it is the only one that may contain line ends.
std::vector<std::uint8_t> encode(const Invitation& invitation) {
    const std::string text = invitation.host + '\n' + invitation.arena + '\n' + invitation.group +
                             '\n' + invitation.error;
    return {text.begin(), text.end()};
}

Invitation decode(const std::vector<std::uint8_t>& bytes) {
    std::istringstream text(std::string(bytes.begin(), bytes.end()));
    Invitation invitation;
    std::getline(text, invitation.host);
    std::getline(text, invitation.arena);
    std::getline(text, invitation.group);
    std::getline(text, invitation.error, '\0');
    return invitation;
}

// The second process group of a process goes into the arena of the first: tensors that are in it
// already are zero copy for both.
std::string choose_arena() {
    std::string name = environment("FABRIC_ARENA");
    if (name.empty()) name = JobArena::current_name();
    return name.empty() ? random_name("torch-") : name;
}

std::shared_ptr<JobArena> open_arena(const std::string& name) {
    return JobArena::open(name, environment("FABRIC_SOCKET"), arena_bytes());
}

// A store may be used again after destroy_process_group(), with the keys of the group before still
// in it. Counting arrivals gives every group a key of its own.
std::string invitation_key(const StorePtr& store, int size) {
    const std::int64_t arrivals = store->add("fabricshm/arrivals", 1);
    return "fabricshm/invitation/" + std::to_string((arrivals - 1) / size);
}

std::shared_ptr<JobArena> invite(const StorePtr& store, const std::string& key,
                                 Invitation& invitation) {
    invitation.host = host_identity();
    invitation.arena = choose_arena();
    invitation.group = random_name("pg-");
    try {
        auto arena = open_arena(invitation.arena);
        store->set(key, encode(invitation));
        return arena;
    } catch (const std::exception& error) {
        // The others are waiting for the key: they get the reason instead of a timeout.
        invitation.error = error.what();
        store->set(key, encode(invitation));
        throw;
    }
}

std::shared_ptr<JobArena> accept(const StorePtr& store, const std::string& key,
                                 Invitation& invitation) {
    invitation = decode(store->get(key));
    if (!invitation.error.empty()) throw std::runtime_error("rank 0: " + invitation.error);
    // By the boot and not by the host's name: containers of one host may have different names, and
    // machines made from one image the same.
    TORCH_CHECK(invitation.host == host_identity(),
                "fabricshm: all ranks of a process group have to be on the host of rank 0");
    return open_arena(invitation.arena);
}

}  // namespace

std::shared_ptr<Communicator> meet(const StorePtr& store, int rank, int size,
                                   std::chrono::milliseconds timeout) {
    const std::string key = invitation_key(store, size);
    Invitation invitation;
    auto arena = rank == 0 ? invite(store, key, invitation) : accept(store, key, invitation);
    return std::make_shared<Communicator>(std::move(arena), invitation.group, rank, size, timeout);
}

}  // namespace fabricshm::torch_backend
