// What tests of writers write, and how.

#pragma once

#include <algorithm>
#include <string>

#include "fabricd/data/silo/silo_writer.hpp"
#include "tests/support/silo_bench.hpp"

namespace test_support {

/// A writer whose steps are waited for one by one.
class WriterBench {
  public:
    explicit WriterBench(fabricd::SiloWriter& writer) : writer_(writer) {}

    fabricd::Written begin(std::uint64_t file, const std::string& path) {
        writer_.begin(file, {path, token_of(file)}, ++tag_);
        return answer();
    }
    fabricd::Written append(std::uint64_t file, const std::string& text) {
        while (!writer_.has_room()) keep(writer_.wait(soon()));
        writer_.append(file, reinterpret_cast<const std::byte*>(text.data()), text.size(), ++tag_);
        return answer();
    }
    fabricd::Written commit(std::uint64_t file) {
        writer_.commit(file, ++tag_);
        return answer();
    }
    fabricd::Written abort(std::uint64_t file) {
        writer_.abort(file, ++tag_);
        return answer();
    }
    /// All steps of a file, in pieces; the first that failed, or the commit. Aborted then.
    fabricd::Written write(std::uint64_t file, const std::string& path, const std::string& text,
                           std::size_t piece = fabricd::kMaxAppend) {
        fabricd::Written last = begin(file, path);
        for (std::size_t at = 0; last.ok() && at < text.size(); at += piece) {
            last = append(file, text.substr(at, piece));
        }
        if (last.ok()) last = commit(file);
        if (!last.ok()) abort(file);
        return last;
    }

    static std::uint64_t token_of(std::uint64_t file) { return 0xfab0000000000000U + file; }

  private:
    void keep(std::vector<fabricd::Written> ended) {
        for (auto& one : ended) kept_.push_back(std::move(one));
    }
    fabricd::Written answer() {
        const auto is_it = [&](const fabricd::Written& one) { return one.tag == tag_; };
        for (const auto end = soon(); fabricshm::Clock::now() < end; keep(writer_.wait(end))) {
            const auto found = std::find_if(kept_.begin(), kept_.end(), is_it);
            if (found != kept_.end()) return *found;
        }
        fabricd::Written late;
        late.error = {fabricshm::Errc::kTimeout, 0, "test"};
        return late;
    }

    fabricd::SiloWriter& writer_;
    std::uint64_t tag_ = 0;
    std::vector<fabricd::Written> kept_;
};

}  // namespace test_support
