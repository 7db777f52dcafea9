"""Label inference attacks: what a feature party can read off its view about the label party's labels, and how well."""
