#include "fabricd/jobs/job_numbers.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>

#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::Fd;
using fabricshm::Result;

namespace {

constexpr const char* kGone = "gone-";
// It is held for some system calls.
constexpr auto kNumbersWithin = std::chrono::seconds(2);

template <typename Use>
void for_each_name(const std::string& folder, Use use) {
    std::error_code error;
    std::filesystem::directory_iterator at(folder, error), end;
    for (; !error && at != end; at.increment(error)) use(at->path().filename().string());
}

std::optional<unsigned> gone_number_of(const std::string& name) {
    if (!name.starts_with(kGone)) return {};
    return job_number_of(name.substr(std::string(kGone).size()));
}

}  // namespace

std::optional<unsigned> job_number_of(const std::string& name) {
    unsigned number = 0;
    const char* end = name.data() + name.size();
    const auto [rest, failure] = std::from_chars(name.data(), end, number);
    if (failure != std::errc{} || rest != end || number == 0 || name.front() == '0') return {};
    if (number > kMaxJobNumber) return {};
    return number;
}

std::string gone_name(unsigned number) {
    return kGone + std::to_string(number);
}

std::vector<unsigned> gone_numbers(const std::string& jobs) {
    std::vector<unsigned> numbers;
    for_each_name(jobs, [&](const std::string& name) {
        if (const auto number = gone_number_of(name)) numbers.push_back(*number);
    });
    std::sort(numbers.begin(), numbers.end());
    return numbers;
}

unsigned last_job_number(const std::string& jobs) {
    unsigned last = 0;
    for_each_name(jobs, [&](const std::string& name) {
        auto number = job_number_of(name);
        if (!number) number = gone_number_of(name);
        last = std::max(last, number.value_or(0));
    });
    return last;
}

Result<Fd> lock_job_numbers(const std::string& jobs) {
    Fd folder(::open(jobs.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder) return fabricshm::error_of_disk(errno, "open the folder of jobs");
    const auto by = fabricshm::deadline_after(Clock::now(), kNumbersWithin);
    while (::flock(folder.get(), LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) return folder;
        if (Clock::now() >= by) {
            return fabricshm::explain({Errc::kBusy, 0, "number a job"},
                                      "another process has locked %s for longer than 2 s",
                                      jobs.c_str());
        }
        ::usleep(1000);
    }
    return folder;
}

}  // namespace fabricd
