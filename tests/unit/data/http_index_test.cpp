// The index of a web server, against folders made of the same lines by std::set.

#include "fabricd/data/silo/http_index.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

using namespace fabricd;

TEST_SUITE("data.http_index") {
    TEST_CASE("each folder has its names, in whatever order the lines are") {
        std::mt19937 random(7);
        const char* const names[] = {"a", "a-", "a0", "b", "c c"};
        for (int turn = 0; turn < 200; ++turn) {
            std::set<std::string> paths;
            for (int i = 0; i < 12; ++i) {
                std::string path = names[random() % 5];
                while (random() % 2 == 0) path += "/" + std::string(names[random() % 5]);
                paths.insert(path);
            }
            // A file that is a folder is none.
            std::map<std::string, std::map<std::string, bool>> expected{{"", {}}};
            std::size_t both = 0;
            std::string text;
            for (const auto& path : paths) {
                text.insert(0, std::to_string(path.size()) + " " + path + "\n");
                const bool is_both =
                    std::any_of(paths.begin(), paths.end(),
                                [&](const auto& other) { return other.starts_with(path + "/"); });
                both += is_both ? 1U : 0U;
                std::string at = path;
                for (bool is_folder = is_both;; is_folder = true) {
                    const std::size_t slash = at.rfind('/');
                    const std::string parent = slash == at.npos ? "" : at.substr(0, slash);
                    expected[parent][slash == at.npos ? at : at.substr(slash + 1)] |= is_folder;
                    if (slash == at.npos) break;
                    at = parent;
                }
            }
            const HttpIndex index(text);
            CHECK(index.left_out() == both);
            for (const auto& [folder, children] : expected) {
                CAPTURE(folder);
                const auto found = index.names_in(folder);
                REQUIRE(found);
                REQUIRE(found->size() == children.size());
                auto name = found->begin();
                for (const auto& [child, is_folder] : children) {
                    CHECK(name->name == child);
                    CHECK(name->is_folder == is_folder);
                    const std::size_t bytes =
                        folder.size() + (folder.empty() ? 0 : 1) + child.size();
                    if (!is_folder) CHECK(name->bytes == bytes);
                    ++name;
                }
            }
            CHECK(!index.names_in("nowhere"));
        }
    }

    TEST_CASE("lines that are none are left out, and the first is named") {
        for (const char* line : {"a", "1", "1 ", "-1 a", "1  a/", "1\ta", "99999999999999999999 a",
                                 "1 ../a", "1 /a", "1 a//b", " 1 a", "1 a/"}) {
            CAPTURE(std::string(line));
            const HttpIndex index("2 good\r\n\n" + std::string(line) + "\n2 good\n");
            CHECK(index.names_in("")->size() == 1);
            CHECK(index.left_out() == 2);
            CHECK(index.first_left_out() != "");
        }
        CHECK(HttpIndex("").names_in("")->empty());
        CHECK(HttpIndex("1  a").names_in("")->front().name == " a");
    }
}
