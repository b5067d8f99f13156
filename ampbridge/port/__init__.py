"""Porting: read a recipe written for one framework, write it for another."""
