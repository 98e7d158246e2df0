#include "fabricd/config/nearest_word.hpp"

#include <algorithm>

namespace fabricd {

namespace {

// Optimal string alignment: as Levenshtein's, and two neighbours that were swapped count as one.
std::size_t distance(const std::string& a, const std::string& b) {
    std::vector<std::vector<std::size_t>> cost(a.size() + 1,
                                               std::vector<std::size_t>(b.size() + 1));
    for (std::size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
    for (std::size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const std::size_t differs = a[i - 1] == b[j - 1] ? 0 : 1;
            cost[i][j] =
                std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + differs});
            const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped) cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
        }
    }
    return cost[a.size()][b.size()];
}

}  // namespace

std::string nearest_word(const std::string& word, const std::vector<std::string>& known) {
    constexpr std::size_t kLongest = 100;  // the work is quadratic, and no word of ours is as long
    if (word.size() > kLongest) return "";
    std::string nearest;
    std::size_t least = std::min<std::size_t>(3, (word.size() + 1) / 2);
    for (const std::string& candidate : known) {
        const std::size_t far = distance(word, candidate);
        if (far >= least) continue;
        least = far;
        nearest = candidate;
    }
    return nearest;
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
    const std::string nearest = nearest_word(word, known);
    return nearest.empty() ? "" : " (did you mean " + nearest + "?)";
}

}  // namespace fabricd
