package conform

var disagreements, endings, verbs, memories []Scenario
