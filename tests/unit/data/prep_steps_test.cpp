#include "fabricd/data/prep/steps.hpp"

#include <doctest/doctest.h>

#include <random>

using namespace fabricd;

namespace {

std::string mistake_in(const std::vector<std::string>& texts) {
    std::vector<PrepStep> steps;
    const auto bad = parse_steps(texts, steps);
    CHECK(steps.empty() == bad.has_value());
    return bad ? std::to_string(bad->step) + ": " + bad->text : "";
}

std::vector<PrepStep> steps_of(const std::vector<std::string>& texts) {
    std::vector<PrepStep> steps;
    REQUIRE_FALSE(parse_steps(texts, steps));
    return steps;
}

}  // namespace

TEST_SUITE("data.prep_steps") {
    TEST_CASE("a list has its steps with their arguments") {
        const auto steps = steps_of({"decode grey", "resize 256", "resize 200x300",
                                     "centre-crop 224", "centre-crop  1x16384"});
        REQUIRE(steps.size() == 5);
        CHECK(steps[0].grey);
        CHECK(steps[1].size == PictureSize{0, 256});
        CHECK(steps[2].size == PictureSize{200, 300});
        CHECK(steps[3].size == PictureSize{224, 224});
        CHECK(steps[4].size == PictureSize{1, 16384});
    }

    TEST_CASE("a mistake is named with its step and what would be right") {
        const std::pair<std::vector<std::string>, const char*> mistakes[] = {
            {{}, "0: there are 1 to 16 steps"},
            {std::vector<std::string>(17, "decode"), "0: there are 1 to 16 steps"},
            {{"decode", "resiz 2"}, "1: there is no step of that name"},
            {{""}, "0: there is no step of that name"},
            {{"decode blue"}, "0: decode takes nothing, or \"grey\""},
            {{"decode", "resize"}, "1: resize takes N (the shorter side) or HxW, 1 to 16384"},
            {{"decode", "resize 0"}, "1: resize takes N (the shorter side) or HxW, 1 to 16384"},
            {{"decode", "resize 16385"}, "1: resize takes N (the shorter side) or HxW, 1 to 16384"},
            {{"decode", "resize 2x"}, "1: resize takes N (the shorter side) or HxW, 1 to 16384"},
            {{"decode", "resize 2 "}, "1: resize takes N (the shorter side) or HxW, 1 to 16384"},
            {{"decode", "centre-crop -1"}, "1: centre-crop takes N or HxW, 1 to 16384"},
            {{"resize 256"}, "0: resize needs a picture, and gets a file here"},
            {{"decode", "decode"}, "1: decode needs a file, and gets a picture here"},
            {{"decode", "normalise"},
             "1: normalise differs from epoch to epoch or makes a file larger, and is not kept: it "
             "belongs into the reader (fabricshm.prepare)"},
        };
        for (const auto& [texts, wanted] : mistakes) {
            CAPTURE(wanted);
            CHECK(mistake_in(texts) == wanted);
        }
    }

    TEST_CASE("tokenise takes a model, and a picture is none of its files") {
        const auto row = step_rows()[static_cast<std::size_t>(StepCode::kTokenise)];
        REQUIRE(row.code == StepCode::kTokenise);
        if (row.missing != nullptr) {
            CHECK(mistake_in({"tokenise /m"}) ==
                  "0: tokenise is not in this build (package libsentencepiece-dev)");
            return;
        }
        CHECK(steps_of({"tokenise /models/a b.model"})[0].model == "/models/a b.model");
        CHECK(mistake_in({"tokenise a.model"}) ==
              "0: tokenise takes the path of a model of SentencePiece");
        CHECK(mistake_in({"decode", "tokenise /m"}) ==
              "1: tokenise needs a file, and gets a picture here");
    }

    TEST_CASE("the shape is known where a step says both sides last") {
        const auto shape_of = [](const std::vector<std::string>& texts) {
            const auto shape = fixed_shape(steps_of(texts));
            return shape ? std::to_string(shape->size.height) + " " +
                               std::to_string(shape->size.width) + " " +
                               std::to_string(shape->channels)
                         : "none";
        };
        CHECK(shape_of({"decode"}) == "none");
        CHECK(shape_of({"decode", "resize 256"}) == "none");
        CHECK(shape_of({"decode", "resize 256", "centre-crop 224"}) == "224 224 3");
        CHECK(shape_of({"decode grey", "resize 20x30"}) == "20 30 1");
        CHECK(shape_of({"decode", "centre-crop 224", "resize 8"}) == "none");
    }

    TEST_CASE("any texts are steps that their own text gives again, or one line") {
        const char* const words[] = {"decode", "resize", "centre-crop", "tokenise",
                                     "x",      " ",      "256",         "grey",
                                     "/m",     "0",      "9999999999"};
        std::mt19937 random(1);
        int lists = 0;
        for (int turn = 0; turn < 20000; ++turn) {
            std::vector<std::string> texts(1 + random() % 3);
            for (std::string& text : texts) {
                for (auto parts = random() % 4; parts > 0; --parts) {
                    text += words[random() % std::size(words)];
                    if (random() % 2 == 0) text += ' ';
                }
            }
            std::vector<PrepStep> steps;
            if (const auto bad = parse_steps(texts, steps)) {
                CHECK(bad->text.find('\n') == std::string::npos);
                continue;
            }
            ++lists;
            std::vector<std::string> again;
            for (const PrepStep& step : steps) again.push_back(text_of(step));
            CHECK(steps_of(again) == steps);
        }
        CHECK(lists > 100);
    }
}
