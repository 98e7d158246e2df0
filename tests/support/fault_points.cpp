#include "tests/support/fault_points.hpp"

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

namespace test_support {

namespace {

// What a process of a job runs; the rest of libfabricshm (pool backends) runs in the daemon.
bool runs_in_daemon(const std::string& file) {
    const bool library = file.rfind("libfabricshm/", 0) == 0;
    return !library || file.rfind("libfabricshm/machine/", 0) == 0;
}

std::string text_of(const std::filesystem::path& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

}  // namespace

std::vector<NamedPoint> fault_points_of(const std::string& root) {
    static const std::regex kPoint(R"re(\bFAULT_POINT\(\s*"([^"]+)"\s*\))re");
    std::map<std::string, NamedPoint> found;
    for (const char* top : {"/libfabricshm", "/fabricd"}) {
        for (const auto& entry : std::filesystem::recursive_directory_iterator(root + top)) {
            const std::string file = entry.path().string().substr(root.size() + 1);
            // The macro's own header has one in a comment, as an example.
            const bool source =
                entry.path().extension() == ".cpp" ||
                (entry.path().extension() == ".hpp" && file != "libfabricshm/base/fault_point.hpp");
            if (!source) continue;
            const std::string text = text_of(entry.path());
            for (std::sregex_iterator match(text.begin(), text.end(), kPoint), end; match != end;
                 ++match) {
                const std::string name = (*match)[1];
                found.try_emplace(name, NamedPoint{name, file, runs_in_daemon(file)});
            }
        }
    }
    std::vector<NamedPoint> points;
    for (auto& [name, point] : found) points.push_back(std::move(point));
    return points;
}

}  // namespace test_support
