"""python main.py fit --config configs/sen1floods.yaml"""

from flood.cli import build_cli

if __name__ == "__main__":
    build_cli()
