#include "fabricd/ctl/row_text.hpp"

#include <doctest/doctest.h>

#include <limits>

using namespace fabricd;

namespace {

template <typename Value>
void check_same(const Value& value) {
    RowJson tree;
    tree("one", 1);
    tree("name", value);
    std::string text = "before";
    {
        RowText row(text);
        row("one", 1);
        row("name", value);
    }
    CAPTURE(text);
    REQUIRE(text.starts_with("before"));
    // As numbers: of the shortest digits of one there are two spellings.
    const Json read = Json::parse(text.substr(6), nullptr, false);
    REQUIRE(read.is_object());
    const Json wanted = Json::parse(one_line(tree.take()));
    CHECK(read == wanted);
    CHECK(read["name"].type() == wanted["name"].type());
}

TEST_SUITE("ctl.row_text") {
    TEST_CASE("a row's text is that of its tree") {
        check_same(true);
        check_same(std::int32_t{-1});
        check_same(std::numeric_limits<std::uint64_t>::max());
        check_same(std::numeric_limits<std::int64_t>::min());
        using Limits = std::numeric_limits<double>;
        for (const double value :
             {0.0, -0.0, 1.0, 1.0 / 3, 1e22, 1e300, 5e-324, 123456789012345680.0, Limits::max(),
              Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity()}) {
            check_same(value);
        }
        using namespace std::string_view_literals;
        for (const std::string_view name :
             {""sv, "plain"sv, "\"\\/"sv, "\x01\n\t\x7f"sv, "\xC3\xA4\xF0\x9F\xA6\x80"sv,
              "\xFF\xC3 \xBF"sv, "a\0b"sv, "\xE2\x80\xAE\xED\xA0\x80"sv}) {
            check_same(std::string(name));
            check_same(name);
        }
        check_same(std::vector<std::int32_t>{});
        check_same(std::vector<std::uint64_t>{1, 2, 3});
        check_same(Json(nullptr));
    }

    TEST_CASE("a row without fields is an object") {
        std::string text;
        { const RowText row(text); }
        CHECK(text == "{}");
    }
}

}  // namespace
