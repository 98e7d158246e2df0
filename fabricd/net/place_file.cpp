#include "fabricd/net/place_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>

#include "libfabricshm/os/fd.hpp"

namespace fabricd {

namespace {

constexpr const char* kStep = "write place in cluster";

// All but the numbers of the place, which come last.
std::string heading_of(const PlaceOwner& owner) {
    return "fabricd-place 1 " + owner.cluster + " " + owner.host + " " +
           std::to_string(owner.boot) + " ";
}

}  // namespace

KeptPlace read_place(const std::string& path, const PlaceOwner& owner) {
    std::ifstream file(path);
    std::string line;
    const std::string heading = heading_of(owner);
    if (!std::getline(file, line) || !line.starts_with(heading)) return {};
    unsigned long long incarnation = 0;
    long long lease = 0;
    int length = 0;
    const char* numbers = line.c_str() + heading.size();
    const int read = std::sscanf(numbers, "%20llu %20lld .%n", &incarnation, &lease, &length);
    const bool is_whole = read == 2 && length > 0 && numbers[length] == '\0';
    return is_whole ? KeptPlace{incarnation, lease} : KeptPlace{};
}

fabricshm::Result<void> write_place(const std::string& path, const PlaceOwner& owner,
                                    const KeptPlace& place) {
    if (place.incarnation == 0) {
        if (::unlink(path.c_str()) == 0 || errno == ENOENT) return {};
        return fabricshm::error_of_disk(errno, kStep);
    }
    const std::string text = heading_of(owner) + std::to_string(place.incarnation) + " " +
                             std::to_string(place.lease) + " .\n";
    const std::string other = path + ".new";
    const fabricshm::Fd file(::open(other.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    // Not synced: it has to outlive the daemon, and after the host's end it is worth nothing.
    if (!file ||
        ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
        ::rename(other.c_str(), path.c_str()) != 0) {
        const int saved = errno;
        ::unlink(other.c_str());
        return fabricshm::error_of_disk(saved, kStep);
    }
    return {};
}

}  // namespace fabricd
