"""Release AUC and curves under label differential privacy: mechanisms, protocols, and the choice among them."""
