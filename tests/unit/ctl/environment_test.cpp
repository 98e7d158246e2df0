#include "fabricd/ctl/environment.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <set>
#include <string>

using namespace fabricd;

TEST_SUITE("ctl.environment") {
    TEST_CASE("the table shows each variable with the value of this process") {
        ::setenv("FABRIC_ALGORITHM", "ring", 1);
        ::unsetenv("FABRIC_CHECK");
        const std::string text = environment_text();
        CHECK(text.find("FABRIC_ALGORITHM") != std::string::npos);
        CHECK(text.find("ring") != std::string::npos);
        const std::string json = environment_json();
        CHECK(json.find("{\"name\":\"FABRIC_ALGORITHM\",\"value\":\"ring\"") != std::string::npos);
        CHECK(json.find("{\"name\":\"FABRIC_CHECK\",\"value\":null") != std::string::npos);
        ::unsetenv("FABRIC_ALGORITHM");
    }

    TEST_CASE("no variable stands there twice") {
        std::set<std::string> names;
        for (const auto& variable : environment_variables()) names.insert(variable.name);
        CHECK(names.size() == environment_variables().size());
    }
}
