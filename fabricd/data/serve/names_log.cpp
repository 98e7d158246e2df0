#include "fabricd/data/serve/names_log.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <utility>

#include "libfabricshm/base/crc32c.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Fd;

namespace {

constexpr std::uint64_t kMagic = 0x31534d4e44424146;  // "FABDNMS1"
constexpr Bytes kMaxNamesBytes = Bytes{4} << 30;

struct Head {
    std::uint64_t magic;
    std::uint64_t generation;
    std::uint32_t silos;
    std::uint32_t reserved;
};

// Behind it path_bytes of path; the checksum is of all that follows it.
struct Record {
    std::uint32_t checksum;
    std::uint32_t path_bytes;  // 0: the file is gone
    std::uint64_t id;
    std::uint64_t first_line;
    std::uint64_t bytes;
    std::uint64_t version[4];
};
static_assert(sizeof(Record) == 64);

std::string as_record(const NamedFile& file) {
    Record record{};
    record.path_bytes = static_cast<std::uint32_t>(file.path.size());
    record.id = file.id;
    record.first_line = file.first_line;
    record.bytes = file.facts.bytes;
    std::copy(file.facts.version.words.begin(), file.facts.version.words.end(), record.version);
    std::string text(reinterpret_cast<const char*>(&record), sizeof record);
    text += file.path;
    record.checksum = fabricshm::crc32c(text.data() + 4, text.size() - 4);
    std::memcpy(text.data(), &record.checksum, sizeof record.checksum);
    return text;
}

// Takes one record from the front. False: what is there is none.
bool take_record(std::string_view& text, std::map<std::uint64_t, NamedFile>& files) {
    Record record;
    if (text.size() < sizeof record) return false;
    std::memcpy(&record, text.data(), sizeof record);
    const std::size_t whole = sizeof record + record.path_bytes;
    if (record.path_bytes > 2 * kSiloPathBytes || text.size() < whole) return false;
    if (record.checksum != fabricshm::crc32c(text.data() + 4, whole - 4)) return false;
    if (record.path_bytes == 0) {
        files.erase(record.id);
    } else {
        NamedFile& file = files[record.id];
        file.id = record.id;
        file.first_line = record.first_line;
        file.facts.bytes = record.bytes;
        std::copy(std::begin(record.version), std::end(record.version),
                  file.facts.version.words.begin());
        file.path = text.substr(sizeof record, record.path_bytes);
    }
    text.remove_prefix(whole);
    return true;
}

std::string read_all(const Fd& file) {
    struct stat status {};
    if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
        static_cast<Bytes>(status.st_size) > kMaxNamesBytes) {
        return "";
    }
    std::string text(static_cast<std::size_t>(status.st_size), '\0');
    std::size_t got = 0;
    while (got < text.size()) {
        const ssize_t piece =
            ::pread(file.get(), text.data() + got, text.size() - got, static_cast<off_t>(got));
        if (piece <= 0) break;
        got += static_cast<std::size_t>(piece);
    }
    text.resize(got);
    return text;
}

}  // namespace

Result<NamesLog> NamesLog::open(const std::string& path, std::uint64_t generation,
                                std::uint32_t silos, std::vector<NamedFile>& files) {
    const Head head{kMagic, generation, silos, 0};
    std::map<std::uint64_t, NamedFile> known;
    if (const Fd old(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW)); old) {
        const std::string text = read_all(old);
        std::string_view rest = text;
        const bool is_ours =
            rest.size() >= sizeof head && std::memcmp(rest.data(), &head, sizeof head) == 0;
        if (is_ours) rest.remove_prefix(sizeof head);
        while (is_ours && take_record(rest, known)) {
        }
    }
    // Written next to it and renamed: killed in between, the old one counts.
    const std::string fresh = path + ".new";
    NamesLog log;
    log.file_ =
        Fd(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!log.file_) return fabricshm::error_of_disk(errno, "make file of names");
    log.records_.assign(reinterpret_cast<const char*>(&head), sizeof head);
    for (const auto& [id, file] : known) {
        log.add(file);
        files.push_back(file);
    }
    FABRIC_TRY_VOID(log.flush());
    if (std::rename(fresh.c_str(), path.c_str()) != 0) {
        return fabricshm::error_of_disk(errno, "name file of names");
    }
    return log;
}

Result<void> NamesLog::flush() {
    // What fails is not tried again: a part of it may be there.
    const std::string records = std::exchange(records_, {});
    std::string_view rest = records;
    while (!rest.empty()) {
        const ssize_t wrote = ::write(file_.get(), rest.data(), rest.size());
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return fabricshm::error_of_disk(errno, "write file of names");
        rest.remove_prefix(static_cast<std::size_t>(wrote));
    }
    return {};
}

void NamesLog::add(const NamedFile& file) {
    records_ += as_record(file);
}

void NamesLog::remove(std::uint64_t id) {
    NamedFile gone;
    gone.id = id;
    add(gone);
}

}  // namespace fabricd
